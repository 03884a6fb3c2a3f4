package tests

import (
	"context"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// Nothing in a Job or a JobInfo forbids to copy it: vet (copylocks) complains of a value that has a
// Lock method or holds such a value.
func TestJobsCanBeCopied(t *testing.T) {
	t.Parallel()
	locker := reflect.TypeFor[sync.Locker]()
	var walk func(typ reflect.Type, path string)
	walk = func(typ reflect.Type, path string) {
		require.False(t, reflect.PointerTo(typ).Implements(locker), path)
		switch typ.Kind() {
		case reflect.Struct:
			for i := range typ.NumField() {
				f := typ.Field(i)
				walk(f.Type, path+"."+f.Name)
			}
		case reflect.Array:
			walk(typ.Elem(), path)
		}
	}
	for _, typ := range []reflect.Type{
		reflect.TypeFor[delayq.Job](), reflect.TypeFor[delayq.JobInfo](), reflect.TypeFor[delayq.RunEvent](),
		reflect.TypeFor[delayq.NewJob](), reflect.TypeFor[delayq.EnqueueResult](),
	} {
		walk(typ, typ.String())
	}
}

// A copy that a handler has made has the fence of the run, also after an extension of the lease.
func TestCopyOfAJobHasTheFenceOfItsRun(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var before, after []int64
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			own := *job
			before = append(before, own.Fence(), job.Fence())
			time.Sleep(10 * time.Second)
			after = append(after, own.Fence(), job.Fence())
			require.Equal(b, job.Nonce(), own.Nonce())
			return nil
		}, delayq.Lease(6*time.Second))
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		info := *b.Get("a", "1")
		require.Equal(b, before[0], info.Fence())
		b.Pass(time.Minute)
		require.Equal(b, before[0], before[1])
		require.Equal(b, after[0], after[1])
		require.Greater(b, after[0], before[0])
		require.Equal(b, before[0], info.Fence(), "what Get has told stays")
		require.Zero(b, new(delayq.Job).Fence())
	})
}
