package delayqotel_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/internal/queuetest"
	delayqotel "github.com/delayq/delayq/otel"
)

// rows describes the spans as docs/howto/tracing.md does.
func (r *recorder) rows() (list []string) {
	for _, line := range strings.Split(strings.TrimSpace(r.table(delayqotel.AttemptKey, delayqotel.OutcomeKey, delayqotel.RetryDelayKey)), "\n") {
		cell := func(pattern, format string) string {
			var parts []string
			for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(line, -1) {
				words := []any{found[1]}
				for _, more := range found[2:] {
					words = append(words, more)
				}
				parts = append(parts, fmt.Sprintf(format, words...))
			}
			return strings.Join(parts, ", ")
		}
		status := "Unset"
		if strings.Contains(line, " Error(") {
			status = "Error"
		}
		cells := []string{
			cell(`^(\d+)`, "%s"), cell(`^\d+ (\w)`, "%s"), cell(`^\d+ \w (\w+)`, "%s"), cell(`^\d+ \w \w+ (.*?)(?: \w+=.*)?$`, "%s"),
			cell(`below=(\d+)`, "%s"), cell(`(creation|previous_run)=(\d+)`, "%s %s"), cell(`attempt=(\d+)`, "%s"),
			cell(`outcome=(\w+)`, "%s"), cell(`retry_delay=(\d+)`, "%s s"), status,
		}
		list = append(list, row(cells))
	}
	return list
}

// row returns a row of a table in Markdown.
func row(cells []string) string {
	text := "|"
	for _, cell := range cells {
		if cell = strings.TrimSpace(cell); cell != "" {
			text += " " + cell
		}
		text += " |"
	}
	return text
}

// The trace of a job that is due in 30 days, fails twice, and is done, as docs/howto/tracing.md
// shows it.
func TestLifeOfAJob(t *testing.T) {
	t.Parallel()
	r := record()
	q := delayqtest.Start(t)
	tracing := r.tracing(delayqotel.LinkRetries(q.Inspector))
	client := delayq.NewClient(q.Redis, delayq.Hooks(tracing))
	q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("mail", func(ctx context.Context, job *delayq.Job) error {
			_, span := r.provider.Tracer("program").Start(ctx, "send")
			span.End()
			if job.Attempt <= 2 {
				return delayq.RetryIn(time.Hour, errTest)
			}
			return nil
		})
	}, delayq.Hooks(tracing))
	ctx, request := r.provider.Tracer("program").Start(t.Context(), "request")
	_, err := client.Enqueue(ctx, "mail", "trial/42", nil, delayq.ProcessIn(30*24*time.Hour))
	require.NoError(t, err)
	request.End()
	q.Advance(30 * 24 * time.Hour)
	q.Advance(2 * time.Hour)

	guide, err := os.ReadFile("../docs/howto/tracing.md")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(guide), "These are all the spans:\n")
	table, _, _ = strings.Cut(strings.TrimSpace(table), "\n\n")
	require.Equal(t, strings.Split(table, "\n")[2:], r.rows())
	for _, run := range r.of("trial/42") {
		require.Equal(t, fmt.Sprint(q.Now().Add(-time.Duration(3-atoi(t, attr(run, delayqotel.AttemptKey)))*time.Hour).UnixMilli()),
			attr(run, delayqotel.DueKey))
	}
}

func atoi(t *testing.T, text string) int {
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// A job that Again makes keeps its creation context. A job of a schedule has none.
func TestJobsWithoutAnEnqueue(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := record()
		client, _ := serve(b, "t", func(_ context.Context, job *delayq.Job) error {
			if string(job.Payload) != "next" && job.Schedule == "" {
				return delayq.Again([]byte("next"))
			}
			return nil
		}, []delayq.Hook{r.tracing()})
		enqueue(b, client, "t", "x")
		b.Pass(time.Second)
		runs := r.of("x")
		require.Len(b, runs, 2)
		for _, run := range runs {
			require.Equal(b, r.one(b, "enqueue t").SpanContext().SpanID(), run.Links()[0].SpanContext.SpanID())
		}
		b.AddSchedule("s", delayq.Every(time.Hour))
		b.Pass(2 * time.Hour)
		runs = r.named("process t")[2:]
		require.NotEmpty(b, runs)
		for _, run := range runs {
			require.Empty(b, run.Links())
		}
	})
}

// Without LinkRetries a retry links to the creation context only, and makes no call to Redis. The
// failed run's own trace is kept with its error in any case.
func TestRetriesWithoutTheirLink(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := record()
		client, _ := serve(b, "mail", func(context.Context, *delayq.Job) error { return errTest }, []delayq.Hook{r.tracing()})
		enqueue(b, client, "mail", "x", delayq.Retry(1), delayq.Backoff(time.Second, time.Second))
		b.Pass(10 * time.Second)
		runs := r.of("x")
		require.Len(b, runs, 2)
		for at, e := range b.Get("mail", "x").Errors {
			require.Len(b, runs[at].Links(), 1)
			require.Contains(b, e.TraceParent, runs[at].SpanContext().SpanID().String())
			require.Contains(b, e.TraceParent, runs[at].SpanContext().TraceID().String())
		}
	})
}

// A run is in the trace of the enqueue if that is wanted, and links to it in any case but one.
func TestRelations(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := record()
		done := func(context.Context, *delayq.Job) error { return nil }
		near, _ := serve(b, "near", done, []delayq.Hook{r.tracing(delayqotel.ParentWithin(5 * time.Second))})
		chosen, _ := serve(b, "chosen", done, []delayq.Hook{r.tracing(
			delayqotel.ParentWithin(time.Hour),
			delayqotel.Relation(func(e delayq.RunEvent) delayqotel.Rel {
				return map[string]delayqotel.Rel{"child": delayqotel.Child, "none": delayqotel.Unrelated}[e.ID]
			}),
		)})
		enqueue(b, near, "near", "now")
		b.Pass(time.Second)
		enqueue(b, near, "near", "soon", delayq.ProcessIn(5*time.Second))
		b.Pass(ms(1))
		enqueue(b, near, "near", "later", delayq.ProcessIn(5001*time.Millisecond))
		b.Pass(10 * time.Second)
		for _, id := range []string{"child", "linked", "none"} {
			enqueue(b, chosen, "chosen", id)
			b.Pass(time.Second)
		}
		require.Equal(b, strings.TrimLeft(`
1 A producer enqueue near id=now
2 A consumer process near below=1 creation=1 id=now
3 B producer enqueue near id=soon
4 C producer enqueue near id=later
5 B consumer process near below=3 creation=3 id=soon
6 D consumer process near creation=4 id=later
7 E producer enqueue chosen id=child
8 E consumer process chosen below=7 creation=7 id=child
9 F producer enqueue chosen id=linked
10 G consumer process chosen creation=9 id=linked
11 H producer enqueue chosen id=none
12 I consumer process chosen id=none
`, "\n"), r.table("messaging.message.id"))
	})
}

// outer is a RunHook that puts a span around every run.
type outer struct{ r *recorder }

func (o outer) Run(ctx context.Context, _ delayq.RunEvent) (context.Context, func(delayq.RunEvent)) {
	ctx, span := o.r.provider.Tracer("program").Start(ctx, "outer")
	return ctx, func(delayq.RunEvent) { span.End() }
}

// A run begins a trace of its own even if there is a span around it.
func TestRunIsARoot(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := record()
		b.Serve("mail", func(context.Context, *delayq.Job) error { return nil }, delayq.Hooks(outer{r}, r.tracing()))
		b.Enqueue("mail", "x")
		b.Pass(time.Second)
		require.False(b, r.of("x")[0].Parent().IsValid())
		require.NotEqual(b, r.one(b, "outer").SpanContext().TraceID(), r.of("x")[0].SpanContext().TraceID())
	})
}

// The calls of a client have spans below the caller's. Refusals are no errors.
func TestCalls(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := record()
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(r.tracing(
			delayqotel.TopicLabel(func(topic string) string {
				label, _, _ := strings.Cut(topic, ".")
				return label
			}))))
		ctx, span := r.provider.Tracer("program").Start(b.Context(), "request")
		do := func(err error) { b.Pass(ms(1)) }
		do(nil)
		_, err := client.Enqueue(ctx, "tenant.7", "", nil, delayq.ProcessIn(time.Hour))
		do(err)
		_, err = client.Enqueue(ctx, "tenant.7", "x", nil, delayq.ProcessIn(time.Hour))
		do(err)
		_, err = client.Enqueue(ctx, "tenant.7", "x", nil)
		require.ErrorIs(b, err, delayq.ErrDuplicate)
		do(err)
		do(client.Reschedule(ctx, "tenant.7", "x", delayq.ProcessIn(time.Minute)))
		do(client.Revive(ctx, "tenant.7", "x"))
		do(client.Bury(ctx, "tenant.7", "x", "why"))
		do(client.Reschedule(ctx, "tenant.7", "x", delayq.ProcessIn(time.Minute)))
		_, err = client.Dequeue(ctx, "tenant.7", "x")
		do(err)
		_, err = client.Get(ctx, "tenant.7", "x")
		do(err)
		_, err = client.CancelBatch(ctx, []delayq.JobRef{{Topic: "tenant.7", ID: "x"}, {Topic: "tenant.7", ID: "y"}})
		do(err)
		do(client.Pause(ctx, "tenant.7", delayq.Pause{}))
		do(client.ResumeAll(ctx, "tenant.7"))
		do(client.Schedule(ctx, "tenant.7", "s", delayq.Every(time.Hour), nil))
		b.Redis.SetError("LOADING by test")
		do(client.Delete(ctx, "tenant.7", "x"))
		span.End()
		generated := attr(r.named("enqueue tenant")[0], "messaging.message.id")
		require.Len(b, generated, 14)
		require.Equal(b, strings.TrimLeft(`
1 A internal request
2 A producer enqueue tenant below=1 name=tenant.7 template=tenant type=send id=GENERATED
3 A producer enqueue tenant below=1 name=tenant.7 template=tenant type=send id=x
4 A producer enqueue tenant below=1 name=tenant.7 template=tenant type=send id=x result=duplicate
5 A client reschedule tenant below=1 name=tenant.7 template=tenant id=x
6 A client revive tenant below=1 name=tenant.7 template=tenant id=x result=not_found
7 A client bury tenant below=1 name=tenant.7 template=tenant id=x
8 A client reschedule tenant below=1 name=tenant.7 template=tenant id=x result=dead
9 A client cancel tenant below=1 name=tenant.7 template=tenant id=x state=dead
10 A client get tenant below=1 name=tenant.7 template=tenant id=x result=not_found
11 A client cancel tenant below=1 name=tenant.7 template=tenant message_count=2
12 A client pause tenant below=1 name=tenant.7 template=tenant
13 A client resume all tenant below=1 name=tenant.7 template=tenant
14 A client schedule tenant below=1 name=tenant.7 template=tenant
15 A client delete tenant below=1 name=tenant.7 template=tenant id=x type=unknown_outcome Error(delete topic "tenant.7" job "x": delayq: no answer from Redis, outcome unknown: LOADING by test)
`, "\n"), strings.ReplaceAll(r.table(
			"messaging.destination.name", "messaging.destination.template", "messaging.operation.type", "messaging.message.id",
			"messaging.batch.message_count", delayqotel.ResultKey, delayqotel.StateKey, "error.type",
		), generated, "GENERATED"))
		require.Equal(b, "resume all", attr(r.one(b, "resume all tenant"), "messaging.operation.name"))
		require.NotEmpty(b, attr(r.named("enqueue tenant")[0], delayqotel.DueKey))
	})
}
