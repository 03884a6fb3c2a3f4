package tests

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// adding is an EnqueueHook that adds an option to every job.
type adding struct{ option delayq.JobOption }

func (a adding) Enqueue(_ context.Context, job *delayq.NewJob) {
	job.Options = append(job.Options, a.option)
}

// Optional headers never replace a header and never make an enqueue fail. They are added together
// or not at all.
func TestOptionalHeaders(t *testing.T) {
	const most = 16 << 10
	filling := func(room int) delayq.JobOption { return delayq.Header("f", strings.Repeat("x", most-1-room)) }
	optional := delayq.OptionalHeaders(map[string]string{"k": "v", "l": "w"})
	for name, c := range map[string]struct {
		defaults []delayq.JobOption
		options  []delayq.JobOption
		want     map[string]string // nil: k and l are not there
		keys     int
	}{
		"alone":       {want: map[string]string{"k": "v", "l": "w"}, keys: 2},
		"beside":      {options: []delayq.JobOption{delayq.Header("m", "x")}, want: map[string]string{"k": "v", "l": "w", "m": "x"}, keys: 3},
		"taken":       {options: []delayq.JobOption{delayq.Header("l", "own")}, want: map[string]string{"l": "own"}, keys: 1},
		"of defaults": {defaults: []delayq.JobOption{delayq.Header("k", "own")}, want: map[string]string{"k": "own"}, keys: 1},
		"room":        {options: []delayq.JobOption{filling(4)}, want: map[string]string{"k": "v", "l": "w"}, keys: 3},
		"no room":     {options: []delayq.JobOption{filling(3)}, keys: 1},
		"later":       {options: []delayq.JobOption{optional, delayq.Header("k", "own")}, want: map[string]string{"k": "own", "l": "w"}, keys: 2},
		"nothing":     {options: []delayq.JobOption{delayq.OptionalHeaders(nil)}, want: map[string]string{"k": "v", "l": "w"}, keys: 2},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
				client := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(adding{optional}), delayq.Defaults(c.defaults...))
				_, err := client.Enqueue(t.Context(), "a", "1", nil, c.options...)
				require.NoError(t, err)
				info, err := client.Get(t.Context(), "a", "1")
				require.NoError(t, err)
				require.Len(t, info.Headers, c.keys)
				for k, v := range c.want {
					require.Equal(t, v, info.Headers[k], k)
				}
			})
		})
	}
}
