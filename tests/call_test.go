package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// call begins a Call.
func call(t *testing.T, client *delayq.Client, id string, opts ...delayq.JobOption) *waiting {
	t.Helper()
	return begin(t, func(ctx context.Context) (*delayq.Result, error) {
		return client.Call(ctx, "t", id, []byte("of "+id), opts...)
	})
}

// A Call returns what the handler of its job has attached, at once and without Retention, also if
// its ID is generated.
func TestCall(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			if string(job.Payload) == "of no" {
				return delayq.Permanent(errors.New("no"))
			}
			return job.SetOutput(append(job.Payload, '!'))
		})
		for _, id := range []string{"x", "x", ""} { // the ID is free again
			began := time.Now()
			end := call(b.T, b.Client, id).get()
			require.NoError(b, end.err)
			require.Equal(b, "of "+id+"!", string(end.result.Output))
			require.Less(b, end.at.Sub(began), 20*time.Millisecond)
		}
		require.ErrorIs(b, call(b.T, b.Client, "no").get().err, delayq.ErrDead)
		b.Pass(61 * time.Second)
		b.Enqueue("t", "later") // the last outcome is deleted by a prune
		b.Pass(10 * time.Minute)
		require.Empty(b, b.RDB.HGetAll(b.Context(), notesKey("t")).Val())
	})
}

// A Call whose job is refused leaves no waiter behind, and neither does one whose payload is too
// long, or whose client already waits too often.
func TestRefusedCallLeavesNoWaiter(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
		end := call(b.T, b.Client, "x").get()
		require.ErrorIs(b, end.err, delayq.ErrDuplicate)
		var twin *delayq.DuplicateError
		require.ErrorAs(b, end.err, &twin)
		require.Equal(b, delayq.StateScheduled, twin.State)
		require.EqualError(b, end.err, `call topic "t" job "x": delayq: duplicate job ID: that job is scheduled`)
		b.Pass(time.Second)
		require.Empty(b, b.RDB.HGetAll(b.Context(), notesKey("t")).Val())
		require.ErrorIs(b, call(b.T, b.Client, "y", delayq.ProcessIn(time.Nanosecond)).get().err, delayq.ErrInvalid)
		require.Empty(b, b.RDB.HGetAll(b.Context(), notesKey("t")).Val())
	})
}

// A job of a Call takes the place of another one, gives it another payload, or follows it. The Call
// waits for what it has enqueued.
func TestCallOfAnIDThatIsInUse(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		finish := make(chan bool)
		b.Serve("t", func(ctx context.Context, job *delayq.Job) error {
			if string(job.Payload) == "of running" && job.ID == "running" && job.Headers["first"] != "" {
				<-finish
			}
			return job.SetOutput(job.Payload)
		})
		b.Enqueue("t", "replaced", delayq.ProcessIn(time.Hour))
		b.Enqueue("t", "burst", delayq.ProcessIn(time.Hour))
		b.Enqueue("t", "running", delayq.Header("first", "yes"))
		b.Pass(time.Second)
		old := await(b.T, b.Client, "t", "replaced")
		b.Pass(time.Second)
		replaces := call(b.T, b.Client, "replaced", delayq.Replace(), delayq.ProcessIn(time.Minute))
		merges := call(b.T, b.Client, "burst", delayq.Debounce(time.Second, time.Minute))
		follows := call(b.T, b.Client, "running", delayq.Latest())
		b.Pass(10 * time.Second)
		require.ErrorIs(b, old.get().err, delayq.ErrReplaced)
		require.NoError(b, merges.get().err)
		require.False(b, replaces.over())
		require.False(b, follows.over(), "its job runs after the first one")
		finish <- true
		require.NoError(b, follows.get().err)
		require.NoError(b, replaces.get().err)
	})
}

// If Redis carries out the enqueue and its reply is lost, the Call waits for the job all the same.
// If nothing was carried out, it says so.
func TestCallWithoutAReply(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		b.Serve("t", func(_ context.Context, job *delayq.Job) error { return job.SetOutput(job.Payload) })
		w := queuetest.NewWire(b.Redis)
		client := delayq.NewClient(w.Client(b.T), delayq.Prefix(queuetest.Prefix))
		lose := func() {
			for range 4 { // go-redis sends a call again
				w.Lose(queuetest.Digest("enqueue"), queuetest.Digest("enqueue_now"))
			}
		}
		lose()
		_, err := client.Enqueue(b.Context(), "t", "plain", nil)
		require.ErrorIs(b, err, delayq.ErrUnknownOutcome, "the wire loses the reply")
		lose()
		end := call(b.T, client, "x").get()
		require.NoError(b, end.err)
		require.Equal(b, "of x", string(end.result.Output))

		w.Die(queuetest.Digest("enqueue"), true)
		lost := call(b.T, client, "y")
		b.Pass(time.Second)
		require.False(b, lost.over(), "nobody knows")
		w.Heal()
		require.ErrorIs(b, lost.get().err, delayq.ErrUnknownOutcome)

		w.Cut()
		began := time.Now()
		end = call(b.T, client, "z").get()
		require.Error(b, end.err)
		require.NotErrorIs(b, end.err, delayq.ErrUnknownOutcome, "it was not sent")
		require.Less(b, time.Since(began), 30*time.Second)
	})
}

// What a handler says of its progress is told to those who wait, in their own goroutine.
func TestWaitersAreToldOfProgress(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			for page := range int64(5) {
				if err := job.Progress(page+1, 5, fmt.Sprint("page ", page+1)); err != nil {
					return err
				}
				time.Sleep(2 * time.Second)
			}
			return nil
		})
		var mu sync.Mutex
		var told []string
		note := func(p delayq.Progress) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf("%d/%d %s", p.Done, p.Total, p.Text))
			require.WithinDuration(b, time.Now(), p.At, time.Second)
		}
		require.NoError(b, call(b.T, b.Client, "x", delayq.OnJobProgress(note)).get().err)
		require.Equal(b, []string{"1/5 page 1", "2/5 page 2", "3/5 page 3", "4/5 page 4", "5/5 page 5"}, told)

		told = nil
		b.Enqueue("t", "y")
		b.Pass(5 * time.Second)
		require.NoError(b, await(b.T, b.Client, "t", "y", delayq.OnJobProgress(note)).get().err)
		require.Equal(b, []string{"3/5 page 3", "4/5 page 4", "5/5 page 5"}, told, "the present one comes at once")
	})
}

// A typed call gives the value that the handler has attached.
func TestCallTyped(t *testing.T) {
	type page struct{ URL string }
	type title struct{ Text string }
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		for name, codec := range map[string]delayq.TopicOption{"msgpack": delayq.MsgPack, "json": delayq.JSON} {
			titles := delayq.NewTopic[page](name, codec)
			server := queuetest.NewServer(b.RDB, queuetest.Prefix)
			titles.Handle(server, func(_ context.Context, job *delayq.Job, p page) error {
				switch p.URL {
				case "none":
					return nil
				case "other":
					return job.SetOutput([]byte("\xc1{"))
				}
				return titles.SetOutput(job, title{"of " + p.URL})
			})
			ctx, stop := context.WithTimeout(b.Context(), time.Hour)
			served := make(chan error)
			go func() { served <- server.Run(ctx) }()
			out, err := delayq.CallTyped[title](ctx, b.Client, titles, "x", page{"a"})
			require.NoError(b, err)
			require.Equal(b, title{"of a"}, out)
			_, err = delayq.CallTyped[title](ctx, b.Client, titles, "x", page{"none"})
			require.ErrorContains(b, err, `job "x": done, but decode tests.title: there is no output`)
			_, err = delayq.CallTyped[title](ctx, b.Client, titles, "x", page{"other"})
			require.ErrorContains(b, err, `job "x": done, but decode tests.title: `)
			_, err = delayq.CallTyped[title](ctx, nil, titles, "x", page{"a"})
			require.ErrorIs(b, err, delayq.ErrInvalid)
			_, err = delayq.CallTyped[title](ctx, b.Client, (*delayq.Topic[page])(nil), "x", page{"a"})
			require.ErrorIs(b, err, delayq.ErrInvalid)
			stop()
			require.NoError(b, <-served)
		}
	})
}

// A handler that waits for a job that needs a worker of its own server is refused, whatever leads
// to that worker.
func TestNestedWaits(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		other := delayq.NewClient(b.RDB, delayq.Prefix("other"))
		var mu sync.Mutex
		errs := map[string]error{}
		try := func(ctx context.Context, from string) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			for to, f := range map[string]func() error{
				"a": func() error { return queuetest.ErrOf(b.Client.Call(ctx, "a", "by "+from, nil)) },
				"allowed": func() error {
					return queuetest.ErrOf(b.Client.Call(ctx, "pool", "by "+from, nil, delayq.AllowNested()))
				},
				"wait":         func() error { return queuetest.ErrOf(b.Client.Wait(ctx, "pool", "by "+from)) },
				"pattern":      func() error { return queuetest.ErrOf(b.Client.Wait(ctx, "p:new", "x")) },
				"elsewhere":    func() error { return queuetest.ErrOf(b.Client.Wait(ctx, "elsewhere", "x")) },
				"other prefix": func() error { return queuetest.ErrOf(other.Wait(ctx, "a", "x")) },
			} {
				err := f()
				mu.Lock()
				errs[from+" "+to] = err
				mu.Unlock()
			}
		}
		server := queuetest.NewServer(b.RDB, queuetest.Prefix)
		server.HandlerFunc("a", func(ctx context.Context, _ *delayq.Job) error { try(ctx, "a"); return nil })
		server.HandlerFunc("pool", queuetest.Nothing)
		server.HandlerFunc("p:*", func(ctx context.Context, _ *delayq.Job) error { try(ctx, "p"); return nil })
		server.HandleBatch("batch", func(ctx context.Context, _ []*delayq.Job) error { try(ctx, "batch"); return nil })
		ctx, stop := context.WithTimeout(b.Context(), time.Hour)
		served := make(chan error)
		go func() { served <- server.Run(ctx) }()
		for _, topic := range []string{"a", "p:x", "batch"} {
			b.Enqueue(topic, "x")
		}
		b.Pass(time.Minute)
		stop()
		require.NoError(b, <-served)
		require.Len(b, errs, 18)
		for what, err := range errs {
			switch _, to, _ := strings.Cut(what, " "); to {
			case "a", "wait", "pattern":
				require.ErrorIs(b, err, delayq.ErrInvalid, what)
				require.ErrorContains(b, err, "AllowNested", what)
			case "allowed":
				require.NoError(b, err, what)
			default:
				require.ErrorIs(b, err, delayq.ErrNotFound, what)
			}
		}
		require.Len(b, b.RDB.SMembers(b.Context(), queuetest.Prefix+":topics").Val(), 4, "nothing was written")
	})
}

// Each argument that is wrong is refused before Redis is asked.
func TestMisuseOfWaits(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		bounded, cancel := context.WithTimeout(b.Context(), time.Hour)
		defer cancel()
		var asked atomic.Int64
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(queuetest.OnScript(func(delayq.ScriptEvent) { asked.Add(1) })))
		enqueue := func(opts ...delayq.JobOption) error {
			return queuetest.ErrOf(client.Enqueue(bounded, "t", "x", nil, opts...))
		}
		batch, err := client.EnqueueBatch(bounded, []delayq.NewJob{{Topic: "t", Options: []delayq.JobOption{delayq.AllowNested()}}})
		require.ErrorIs(b, err, delayq.ErrInvalid)
		for says, err := range map[string]error{
			"context without a deadline":               queuetest.ErrOf(client.Wait(b.Context(), "t", "x")),
			"context without a deadline: it":           queuetest.ErrOf(client.Call(b.Context(), "t", "x", nil)),
			"empty job ID":                             queuetest.ErrOf(client.Wait(bounded, "t", "")),
			"OnJobProgress: f is nil":                  queuetest.ErrOf(client.Wait(bounded, "t", "x", delayq.OnJobProgress(nil))),
			"zero WaitOption":                          queuetest.ErrOf(client.Call(bounded, "t", "x", nil, delayq.WaitOption{})),
			"a job option is nil":                      queuetest.ErrOf(client.Call(bounded, "t", "x", nil, nil)),
			"nil context":                              queuetest.ErrOf(client.Call(noContext, "t", "x", nil)),
			`topic "a{b"`:                              queuetest.ErrOf(client.Call(bounded, "a{b", "x", nil)),
			"AllowNested: only for Wait and Call":      enqueue(delayq.AllowNested()),
			"OnJobProgress: only for Wait and Call":    enqueue(delayq.OnJobProgress(nil)),
			"zero WaitOption: only for Wait and Call":  enqueue(delayq.WaitOption{}),
			"job 0: AllowNested":                       batch[0].Err,
			"Defaults: AllowNested: only for":          queuetest.ErrOf(delayq.NewClient(b.RDB, delayq.Defaults(delayq.AllowNested())).Get(bounded, "t", "x")),
			"AllowNested: only for Wait and Call ":     nil,
			"schedule: AllowNested: only for Wait and": client.Schedule(bounded, "t", "s", delayq.Every(time.Hour), nil, delayq.AllowNested()),
		} {
			if err == nil {
				continue
			}
			require.ErrorIs(b, err, delayq.ErrInvalid, says)
			if !strings.HasPrefix(says, "job 0") && !strings.HasPrefix(says, "schedule") {
				require.ErrorContains(b, err, says)
			}
		}
		require.Zero(b, asked.Load())
		require.ErrorIs(b, queuetest.ErrOf(b.Client.Get(bounded, "t", "x")), delayq.ErrNotFound)

		ended, stop := context.WithTimeout(b.Context(), time.Hour)
		stop()
		require.ErrorIs(b, queuetest.ErrOf(client.Wait(ended, "t", "x")), context.Canceled)
		require.ErrorIs(b, queuetest.ErrOf(client.Call(ended, "t", "x", nil)), context.Canceled)
		require.Zero(b, asked.Load())
	})
}
