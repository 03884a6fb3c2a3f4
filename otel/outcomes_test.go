package delayqotel_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	delayqotel "github.com/delayq/delayq/otel"
)

// A typedError is an error of a type of its own.
type typedError struct{}

func (typedError) Error() string { return "typed" }

// Each outcome of a run has its attributes and its status, and only failures have an error status.
func TestOutcomes(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := record()
		tracing := r.tracing(delayqotel.BodySize(), delayqotel.ServerAddress("redis.example", 6379))
		early := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(tracing))
		enqueue(b, early, "mail", "expired", delayq.ExpireIn(ms(1)))
		b.Pass(ms(50))
		s := b.Serve("mail", func(ctx context.Context, job *delayq.Job) error {
			time.Sleep(ms(100))
			switch name, _, _ := strings.Cut(job.ID, "/"); name {
			case "retried", "buried":
				return fmt.Errorf("send: %w", errTest)
			case "typed":
				return fmt.Errorf("send: %w", errors.Join(typedError{}, errTest))
			case "snoozed":
				return delayq.Snooze(time.Hour)
			case "again":
				return delayq.Again([]byte("next"), delayq.ProcessIn(time.Hour))
			case "panic":
				panic("no \xff printer")
			case "goexit":
				runtime.Goexit()
			case "timeout":
				<-ctx.Done()
				return ctx.Err()
			case "cancelled", "returned":
				<-ctx.Done()
				return ctx.Err()
			case "replaced":
				if string(job.Payload) != "new" {
					<-ctx.Done()
				}
			case "bytes\xff":
				return errors.New("bad byte \xfe")
			}
			return nil
		}, delayq.Hooks(tracing), delayq.Concurrency(20), delayq.Drain(0))
		b.Pass(time.Second)
		backoff := delayq.Backoff(time.Hour, time.Hour)
		for _, id := range []string{
			"acked", "retried", "typed", "snoozed", "again", "panic", "goexit", "cancelled", "replaced", "returned", "bytes\xff",
		} {
			enqueue(b, early, "mail", id, backoff)
		}
		enqueue(b, early, "mail", "buried", delayq.Retry(0))
		enqueue(b, early, "mail", "timeout", backoff, delayq.Timeout(ms(300)))
		b.Pass(time.Second)
		_, err := early.Dequeue(b.Context(), "mail", "cancelled")
		require.NoError(b, err)
		_, err = early.Enqueue(b.Context(), "mail", "replaced", []byte("new"), delayq.Replace(), delayq.ProcessIn(time.Hour))
		require.NoError(b, err)
		b.Pass(time.Second)
		require.NoError(b, s.Stop())

		const hour = "3600"
		for id, want := range map[string]struct {
			outcome, kind, text, delay string
			ran                        time.Duration
		}{
			"acked":       {outcome: "acked", ran: ms(100)},
			"retried":     {outcome: "retried", kind: "*errors.errorString", text: "send: out of stock", delay: hour, ran: ms(100)},
			"typed":       {outcome: "retried", kind: "delayqotel_test.typedError", text: "send: typed\nout of stock", delay: hour, ran: ms(100)},
			"buried":      {outcome: "buried", kind: "*errors.errorString", text: "send: out of stock", ran: ms(100)},
			"snoozed":     {outcome: "snoozed", delay: hour, ran: ms(100)},
			"again":       {outcome: "again", delay: hour, ran: ms(100)},
			"panic":       {outcome: "retried", kind: "panic", text: "panic: no \uFFFD printer", delay: hour, ran: ms(100)},
			"goexit":      {outcome: "retried", kind: "panic", text: "goexit: handler called runtime.Goexit", delay: hour, ran: ms(100)},
			"timeout":     {outcome: "retried", kind: "timeout", text: "context deadline exceeded", delay: hour, ran: ms(300)},
			"cancelled":   {outcome: "cancelled", ran: time.Second},
			"replaced":    {outcome: "replaced", ran: time.Second},
			"returned":    {outcome: "returned", ran: 2 * time.Second},
			"expired":     {outcome: "expired"},
			"bytes\uFFFD": {outcome: "retried", kind: "*errors.errorString", text: "bad byte \uFFFD", delay: hour, ran: ms(100)},
		} {
			spans := r.of(id)
			require.Len(b, spans, 1, id)
			span := spans[0]
			require.Equal(b, "process mail", span.Name(), id)
			require.Equal(b, trace.SpanKindConsumer, span.SpanKind(), id)
			require.False(b, span.Parent().IsValid(), id)
			require.Len(b, span.Links(), 1, id)
			require.Equal(b, want.ran, span.EndTime().Sub(span.StartTime()), id)
			lateness := "0"
			if id == "expired" {
				lateness = ""
			}
			for key, value := range map[string]string{
				"messaging.system": "delayq", "messaging.destination.name": "mail", "messaging.operation.name": "process",
				"messaging.operation.type": "process", "messaging.client.id": s.ID(), "server.address": "redis.example", "server.port": "6379",
				"messaging.delayq.message.attempt": "1", "messaging.delayq.message.lateness": lateness,
				"messaging.delayq.message.outcome": want.outcome, "error.type": want.kind,
			} {
				require.Equal(b, value, attr(span, attribute.Key(key)), "%s %s", id, key)
			}
			if id == "acked" {
				require.Equal(b, fmt.Sprint(len("of acked")), attr(span, "messaging.message.body.size"))
			}
			delay := attr(span, delayqotel.RetryDelayKey)
			if want.delay == "" {
				require.Empty(b, delay, id)
			} else {
				require.Regexp(b, `^(3[6-9]|4[0-3])\d\d(\.\d+)?$`, delay, id)
			}
			if want.kind == "" {
				require.Equal(b, codes.Unset, span.Status().Code, id)
			} else {
				require.Equal(b, codes.Error, span.Status().Code, id)
				require.Equal(b, want.text, span.Status().Description, id)
			}
			if want.kind == "panic" {
				require.Len(b, span.Events(), 1, id)
				require.Equal(b, "exception", span.Events()[0].Name)
			} else {
				require.Empty(b, span.Events(), id)
			}
		}
	})
}

// A run that loses its lease has failed. One whose outcome Redis has not received has none.
func TestOutcomesWithoutRedis(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r, w := record(), queuetest.NewWire(b.Redis)
		tracing := r.tracing()
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(tracing))
		s := b.ServeOn(w, "mail", func(ctx context.Context, job *delayq.Job) error {
			if job.ID == "lost" {
				<-ctx.Done()
				return nil
			}
			time.Sleep(2 * time.Second)
			return errTest
		}, delayq.Hooks(tracing), delayq.Drain(3*time.Second), delayq.Lease(10*time.Second))
		enqueue(b, client, "mail", "lost")
		b.Pass(time.Second)
		w.Cut()
		b.Pass(20 * time.Second)
		w.Mend()
		b.Pass(20 * time.Second)
		lost := r.of("lost")[0]
		require.Equal(b, "lease_lost", attr(lost, delayqotel.OutcomeKey))
		require.Equal(b, "lease_lost", attr(lost, "error.type"))
		require.Equal(b, codes.Error, lost.Status().Code)

		enqueue(b, client, "mail", "unsettled")
		b.Pass(time.Second)
		w.Cut()
		require.NoError(b, s.Stop())
		unsettled := r.of("unsettled")
		require.Len(b, unsettled, 1)
		require.Empty(b, attr(unsettled[0], delayqotel.OutcomeKey))
		require.Equal(b, "*errors.errorString", attr(unsettled[0], "error.type"))
		require.Equal(b, 2*time.Second, unsettled[0].EndTime().Sub(unsettled[0].StartTime()))
	})
}

// Texts of errors and stacks can be kept out of the spans.
func TestNoErrorText(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := record()
		client, _ := serve(b, "mail", func(_ context.Context, job *delayq.Job) error {
			if job.ID == "panic" {
				panic("secret")
			}
			return errors.New("secret")
		}, []delayq.Hook{r.tracing(delayqotel.NoErrorText(), delayqotel.SettleSpans())})
		enqueue(b, client, "mail", "panic", delayq.Retry(0))
		enqueue(b, client, "mail", "error", delayq.Retry(0))
		b.Pass(time.Second)
		_, err := client.Enqueue(b.Context(), "secret{}", "x", nil)
		require.ErrorIs(b, err, delayq.ErrInvalid)
		require.Equal(b, "panic", attr(r.of("panic")[0], "error.type"))
		require.Equal(b, "*errors.errorString", attr(r.of("error")[0], "error.type"))
		for _, span := range r.spans() {
			require.Empty(b, span.Status().Description)
			require.Empty(b, span.Events())
		}
		require.Equal(b, "invalid", attr(r.one(b, "enqueue secret{}"), "error.type"))
	})
}

// A settle span lasts from the end of the handler until Redis has the outcome.
func TestSettleSpans(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r, w := record(), queuetest.NewWire(b.Redis)
		tracing := r.tracing(delayqotel.SettleSpans())
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(tracing))
		b.ServeOn(w, "mail", func(ctx context.Context, job *delayq.Job) error {
			switch job.ID {
			case "slow":
				w.Cut()
				time.AfterFunc(3*time.Second, w.Mend)
			case "cancelled":
				<-ctx.Done()
			}
			return nil
		}, delayq.Hooks(tracing))
		enqueue(b, client, "mail", "slow")
		b.Pass(10 * time.Second)
		span := r.one(b, "settle mail")
		require.Equal(b, trace.SpanKindClient, span.SpanKind())
		require.Equal(b, r.of("slow")[0].SpanContext().SpanID(), span.Parent().SpanID())
		require.Equal(b, r.of("slow")[0].EndTime(), span.StartTime())
		require.GreaterOrEqual(b, span.EndTime().Sub(span.StartTime()), 3*time.Second)
		for key, value := range map[attribute.Key]string{
			"messaging.operation.name": "settle", "messaging.operation.type": "settle", "messaging.message.id": "slow",
			delayqotel.OutcomeKey: "acked",
		} {
			require.Equal(b, value, attr(span, key), key)
		}

		enqueue(b, client, "mail", "cancelled")
		b.Pass(time.Second)
		_, err := client.Dequeue(b.Context(), "mail", "cancelled")
		require.NoError(b, err)
		b.Pass(time.Second)
		require.Len(b, r.of("cancelled"), 1)
		require.Len(b, r.named("settle mail"), 1)
	})
}

// Payloads and headers are never in a span, and IDs and texts of errors never in a metric.
func TestNothingPrivate(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r, g := record(), measure()
		hooks := []delayq.Hook{
			r.tracing(delayqotel.BodySize(), delayqotel.SettleSpans(), delayqotel.CreateSpans(), delayqotel.LinkRetries(b.Inspector), delayqotel.Baggage("b")),
			delayqotel.NewMetrics(delayqotel.MeterProvider(g.provider)),
		}
		client, _ := serve(b, "mail", func(_ context.Context, job *delayq.Job) error {
			switch {
			case job.Attempt > 1:
				return nil
			case job.ID == "id-panic":
				panic("text of error")
			case job.ID == "id-snooze":
				return fmt.Errorf("text of error: %w", delayq.Snooze(time.Second))
			}
			return errors.New("text of error")
		}, hooks)
		_, err := delayqotel.Observe(b.Inspector, delayqotel.MeterProvider(g.provider))
		require.NoError(b, err)
		ctx := bag(b, b.Context(), "b=private")
		opts := []delayq.JobOption{delayq.Header("private-key", "private-value"), delayq.Backoff(time.Second, time.Second), delayq.ExpireIn(time.Hour)}
		var batch []delayq.NewJob
		for _, id := range []string{"id-panic", "id-snooze", "id-error"} {
			_, err := client.Enqueue(ctx, "mail", id, []byte("private"), opts...)
			require.NoError(b, err)
			batch = append(batch, delayq.NewJob{Topic: "mail", ID: id + "2", Payload: []byte("private"), Options: opts})
		}
		_, err = client.EnqueueBatch(ctx, batch)
		require.NoError(b, err)
		b.Pass(time.Minute)
		_, err = client.Enqueue(ctx, "mail", "id-invalid", []byte("private"), append(opts, delayq.Retry(-5))...)
		require.ErrorIs(b, err, delayq.ErrInvalid)
		spans := fmt.Sprintf("%+v", tracetest.SpanStubsFromReadOnlySpans(r.spans()))
		require.Contains(b, spans, "text of error")
		require.Contains(b, spans, "id-snooze")
		require.NotContains(b, spans, "private")
		metrics := strings.Join(names(g.read(b)), " ")
		require.Contains(b, metrics, "messaging.process.duration{error.type=panic")
		for _, word := range []string{"private", "text of error", "id-"} {
			require.NotContains(b, metrics, word)
		}
	})
}
