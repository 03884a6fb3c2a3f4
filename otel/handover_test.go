package delayqotel_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	delayqotel "github.com/delayq/delayq/otel"
)

// A job that a run hands over links to the span of that run, as one of an Enqueue does to the span
// of the Enqueue. So do those of a batch handler, each to the run of its own job.
func TestHandOverIsLinked(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := record()
		then := func(job *delayq.Job) error { return job.Then("mail", "mail of "+job.ID, nil) }
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandlerFunc("order", func(_ context.Context, job *delayq.Job) error {
				time.Sleep(ms(1))
				return then(job)
			}))
			require.NoError(b, s.HandleBatch("orders", func(_ context.Context, jobs []*delayq.Job) error {
				time.Sleep(ms(1))
				for _, job := range jobs {
					require.NoError(b, then(job))
				}
				return nil
			}))
			require.NoError(b, s.HandlerFunc("mail", queuetest.Nothing))
		}, delayq.Hooks(r.tracing()))
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(r.tracing()))
		enqueue(b.T, client, "order", "1")
		b.Pass(time.Second)
		require.Equal(b, "1 A producer enqueue order\n"+
			"2 B consumer process order creation=1\n"+
			"3 C consumer process mail creation=2\n", r.table())
		enqueue(b.T, client, "orders", "2")
		enqueue(b.T, client, "orders", "3")
		b.Pass(time.Second)
		for _, id := range []string{"2", "3"} {
			runs, mails := r.of(id), r.of("mail of "+id)
			require.Len(b, runs, 1)
			require.Len(b, mails, 1)
			require.Len(b, mails[0].Links(), 1)
			require.Equal(b, runs[0].SpanContext().SpanID(), mails[0].Links()[0].SpanContext.SpanID())
		}
	})
}

// With ParentWithin a job that is handed over is in the trace of the run that does it.
func TestHandOverInOneTrace(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := record()
		hook := delayq.Hooks(r.tracing(delayqotel.ParentWithin(time.Minute)))
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandlerFunc("order", func(_ context.Context, job *delayq.Job) error {
				time.Sleep(ms(1))
				return job.Then("mail", "", nil)
			}))
			require.NoError(b, s.HandlerFunc("mail", queuetest.Nothing))
		}, hook)
		enqueue(b.T, delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), hook), "order", "1")
		b.Pass(time.Second)
		require.Equal(b, "1 A producer enqueue order\n"+
			"2 A consumer process order below=1 creation=1\n"+
			"3 A consumer process mail below=2 creation=2\n", r.table())
	})
}

// A Call has a span, with that of its Enqueue below it. A Wait has one as well.
func TestSpansOfCalls(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := record()
		client, _ := serve(b, "sum", func(context.Context, *delayq.Job) error { time.Sleep(ms(2)); return nil }, []delayq.Hook{r.tracing()})
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		_, err := client.Call(ctx, "sum", "1", nil, delayq.Retention(time.Hour))
		require.NoError(b, err)
		_, err = client.Wait(ctx, "sum", "1")
		require.NoError(b, err)
		b.Pass(time.Second)
		call, sent, ran := r.one(b, "call sum"), r.one(b, "enqueue sum"), r.one(b, "process sum")
		require.Equal(b, trace.SpanKindClient, call.SpanKind())
		require.Equal(b, call.SpanContext().SpanID(), sent.Parent().SpanID())
		require.Equal(b, sent.SpanContext().SpanID(), ran.Links()[0].SpanContext.SpanID())
		require.Equal(b, trace.SpanKindClient, r.one(b, "wait sum").SpanKind())
	})
}
