package delayqotel_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	delayqotel "github.com/delayq/delayq/otel"
)

// A batch has one creation context, or one for each job.
func TestBatch(t *testing.T) {
	for name, c := range map[string]struct {
		opts []delayqotel.TracingOption
		want string
	}{
		"one context": {nil, `
1 A internal request
2 A producer enqueue mail below=1 type=send message_count=3 failed_count=1
3 B consumer process mail creation=2 type=process id=b
4 C consumer process mail creation=2 type=process id=a
`},
		"a context for each": {[]delayqotel.TracingOption{delayqotel.CreateSpans(), delayqotel.BodySize()}, `
1 A internal request
2 A client enqueue mail below=1 link=3 link=4 link=5 type=send message_count=3 failed_count=1
3 A producer create mail below=1 type=create id=a size=1
4 A producer create mail below=1 type=create id=b size=2
5 A producer create mail below=1 type=create id=a size=3
6 B consumer process mail creation=4 type=process id=b size=2
7 C consumer process mail creation=3 type=process id=a size=1
`},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				r := record()
				tracing := r.tracing(c.opts...)
				client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(passing{}, tracing))
				ctx, span := r.provider.Tracer("program").Start(b.Context(), "request")
				b.Pass(ms(1))
				later := []delayq.JobOption{delayq.ProcessIn(time.Second)}
				results, err := client.EnqueueBatch(ctx, []delayq.NewJob{
					{Topic: "mail", ID: "a", Payload: []byte("1"), Options: later}, {Topic: "mail", ID: "b", Payload: []byte("22")},
					{Topic: "mail", ID: "a", Payload: []byte("333")},
				})
				require.ErrorIs(b, err, delayq.ErrDuplicate)
				require.NoError(b, results[1].Err)
				span.End()
				serveOne(b, "mail", tracing)
				b.Pass(10 * time.Second)
				require.Equal(b, strings.TrimLeft(c.want, "\n"), r.table(
					"messaging.operation.type", "messaging.batch.message_count", delayqotel.FailedKey, "messaging.message.id", "messaging.message.body.size",
				))
			})
		})
	}
}

// passing is an EnqueueHook during which time passes, so that no two create spans begin together.
type passing struct{}

func (passing) Enqueue(context.Context, *delayq.NewJob) { time.Sleep(ms(1)) }

// serveOne serves a topic one job at a time.
func serveOne(b *queuetest.Bubble, topic string, hook delayq.Hook) {
	b.Serve(topic, func(context.Context, *delayq.Job) error { time.Sleep(ms(1)); return nil }, delayq.Hooks(hook), delayq.Concurrency(1))
}

// A batch of several topics has no topic in its name. Errors that are not refusals give it an error
// status.
func TestBatchOfSeveralTopics(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := record()
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(r.tracing(delayqotel.CreateSpans())))
		_, err := client.EnqueueBatch(b.Context(), []delayq.NewJob{{Topic: "a", ID: "1"}, {Topic: "b{", ID: "2"}})
		require.ErrorIs(b, err, delayq.ErrInvalid)
		span := r.one(b, "enqueue")
		require.Equal(b, "2", attr(span, "messaging.batch.message_count"))
		require.Equal(b, "invalid", attr(span, "error.type"))
		require.Empty(b, attr(span, "messaging.destination.name"))
		require.Len(b, r.named("create a"), 1)
		require.Equal(b, "delayq", attr(r.one(b, "create b{"), "messaging.system"))
	})
}

// The status of a batch depends on all of its errors, and not on the first few.
func TestBatchOfRefusals(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := record()
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(r.tracing()))
		jobs := make([]delayq.NewJob, 21)
		for at := range jobs {
			jobs[at] = delayq.NewJob{Topic: "mail", ID: fmt.Sprint(at), Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}}
		}
		_, err := client.EnqueueBatch(b.Context(), jobs)
		require.NoError(b, err)
		b.Pass(ms(1))
		_, err = client.EnqueueBatch(b.Context(), jobs)
		require.ErrorIs(b, err, delayq.ErrDuplicate)
		b.Pass(ms(1))
		jobs[20].ID = "expires" // which only Redis can know
		jobs[20].Options = []delayq.JobOption{delayq.ProcessAt(time.Now().Add(2 * time.Hour)), delayq.ExpireIn(time.Hour)}
		_, err = client.EnqueueBatch(b.Context(), jobs)
		require.ErrorIs(b, err, delayq.ErrDuplicate)
		b.Pass(ms(1))
		refs := []delayq.JobRef{{Topic: "mail", ID: "x"}, {Topic: "mail", ID: "y"}}
		_, err = client.CancelBatch(b.Context(), refs)
		require.ErrorIs(b, err, delayq.ErrNotFound)
		refs[1].Topic = "mail{"
		_, err = client.CancelBatch(b.Context(), refs)
		require.ErrorIs(b, err, delayq.ErrInvalid)
		var got []string
		for _, span := range r.spans() {
			got = append(got, fmt.Sprintf("%s|%s|%s|%v", span.Name(), attr(span, delayqotel.FailedKey), attr(span, "error.type"), span.Status().Code))
		}
		require.Equal(b, []string{
			"enqueue mail|||Unset", "enqueue mail|21||Unset", "enqueue mail|21|invalid|Error", "cancel mail|||Unset", "cancel||invalid|Error",
		}, got)
	})
}

// A large batch keeps the newest links, and every job has its own creation context.
func TestLargeBatch(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := record()
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(r.tracing(delayqotel.CreateSpans())))
		jobs := make([]delayq.NewJob, 1000)
		for at := range jobs {
			jobs[at] = delayq.NewJob{Topic: "mail", ID: fmt.Sprint(at), Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}}
		}
		_, err := client.EnqueueBatch(b.Context(), jobs)
		require.NoError(b, err)
		span := r.one(b, "enqueue mail")
		require.Len(b, span.Links(), sdktrace.DefaultLinkCountLimit)
		require.Equal(b, len(jobs)-sdktrace.DefaultLinkCountLimit, span.DroppedLinks())
		created := make(map[string]bool)
		for _, s := range r.named("create mail") {
			created[s.SpanContext().SpanID().String()] = true
		}
		for _, job := range jobs {
			parent := b.Get("mail", job.ID).Headers["traceparent"]
			require.Len(b, parent, 55)
			id := parent[36:52]
			require.True(b, created[id], job.ID)
			delete(created, id)
		}
	})
}
