package gateway

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A take waits for a job as long as it is asked to, and has as many as there are.
func TestTake(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		began := time.Now()
		require.Empty(b, w.took("mail", `{"wait":7}`))
		require.Equal(b, 7*time.Second, time.Since(began))
		b.Enqueue("mail", "late", delayq.ProcessIn(5*time.Second))
		began = time.Now()
		jobs := w.took("mail", `{"wait":20,"max":10,"lease":"10m"}`)
		require.Len(b, jobs, 1)
		require.Less(b, time.Since(began), 5*time.Second+100*time.Millisecond)
		require.Equal(b, "late", jobs[0]["id"])
		require.EqualValues(b, 1, jobs[0]["attempt"])
		w.is(w.settles("mail", jobs[0], "ack", ""), 200, "")

		for i := range 150 {
			b.Enqueue("mail", fmt.Sprint(i))
		}
		jobs = w.took("mail", `{"max":100}`)
		require.Len(b, jobs, 100)
		rest := w.took("mail", `{"max":100}`)
		require.Len(b, rest, 50)
		require.EqualValues(b, 150, w.held)
		for _, one := range append(jobs, rest...) {
			w.is(w.settles("mail", one, "ack", ""), 200, "")
		}
		require.EqualValues(b, 151, b.Counter("mail", "acked"))
		require.Zero(b, w.held)
		require.Zero(b, w.wanted)
		for request, field := range map[string]string{
			`{"max":0}`: "max", `{"max":101}`: "max", `{"wait":61}`: "wait", `{"wait":-1}`: "wait", `{"lease":0.5}`: "lease", `{"lease":"13h"}`: "lease", `{"lease":"x"}`: "lease",
		} {
			require.Equal(b, []string{field}, w.is(w.ask("all", "POST", "/v1/topics/mail/take", request), 422, "invalid").fields())
		}
	})
}

// A job that no consumer waits for is left to others.
func TestNothingIsTakenAhead(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		for i := range 20 {
			b.Enqueue("mail", fmt.Sprint(i))
		}
		require.Len(b, w.took("mail", `{"max":3,"lease":600}`), 3)
		b.Pass(30 * time.Second)
		stats := b.Stats("mail")
		require.EqualValues(b, 17, stats.Ready)
		require.EqualValues(b, 3, stats.Running)
	})
}

// Each outcome does what its name says.
func TestOutcomes(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		n := 0
		settle := func(outcome, more, want string, opts ...delayq.JobOption) string {
			b.Helper()
			n++
			id := fmt.Sprint("job-", n)
			b.Enqueue("mail", id, opts...)
			jobs := w.took("mail", `{}`)
			require.Equal(b, id, jobs[0]["id"])
			a := w.is(w.settles("mail", jobs[0], outcome, more), 200, "")
			require.Equal(b, want, a.result()["outcome"])
			return id
		}
		id := settle("ack", `,"output_base64":"/w=="`, "acked", delayq.Retention(time.Hour))
		require.Equal(b, []byte{0xff}, b.Get("mail", id).Output())
		id = settle("fail", `,"error":"smtp: 450","delay":"1h"`, "retried")
		info := b.Get("mail", id)
		require.Equal(b, "smtp: 450", info.Errors[0].Message)
		require.Equal(b, time.Hour, time.Until(info.Due).Round(time.Minute))
		id = settle("fail", ``, "retried", delayq.Backoff(time.Hour, time.Hour))
		require.Equal(b, "the consumer reported a failure", b.Get("mail", id).Errors[0].Message)
		id = settle("fail", ``, "buried", delayq.Retry(0))
		require.Equal(b, delayq.StateDead, b.State("mail", id))
		id = settle("bury", `,"error":"never"`, "buried")
		require.Equal(b, delayq.StateDead, b.State("mail", id))
		id = settle("snooze", `,"delay":3600`, "snoozed")
		require.Equal(b, 1, b.Get("mail", id).Snoozes)
		id = settle("again", `,"again":{"payload":"next","process_in":"1h","retry":4}`, "again")
		info = b.Get("mail", id)
		require.Equal(b, []any{`"next"`, 4, 1}, []any{string(info.Payload), info.Retries, info.Attempt})
		id = settle("again", `,"again":{"process_in":"1h"}`, "again")
		require.Equal(b, "of "+id, string(b.Get("mail", id).Payload))
		id = settle("release", ``, "held")
		require.Equal(b, delayq.StateReady, b.State("mail", id))
		w.is(w.settles("mail", w.took("mail", `{}`)[0], "ack", ""), 200, "")
		settle("ack", `,"then":[{"id":"t1","payload":1},{"topic":"other","id":"t2","process_in":60}]`, "acked")
		b.Pass(time.Second)
		require.Equal(b, "1", string(b.Get("mail", "t1").Payload))
		require.Equal(b, delayq.StateScheduled, b.State("other", "t2"))
		w.is(w.settles("mail", w.took("mail", `{}`)[0], "ack", ""), 200, "")
		settle("hold", `,"delay":30,"error":"429 Too Many Requests"`, "held")
		require.Empty(b, w.took("mail", `{"wait":20}`))
		require.Len(b, w.took("mail", `{"wait":20}`), 1)
	})
}

// A settle that does not say what it must, or says too much, is refused and changes nothing.
func TestInvalidSettles(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		b.Enqueue("mail", "1")
		job := w.took("mail", `{"lease":60}`)[0]
		for more, want := range map[string]string{
			`"ok"`: "outcome", `"ack","delay":1`: "delay", `"snooze"`: "delay", `"hold"`: "delay", `"snooze","delay":-1`: "delay", `"release","error":"x"`: "error",
			`"ack","output":1,"output_base64":"eA=="`: "output", `"ack","output":"` + strings.Repeat("x", 64<<10) + `"`: "output",
			`"again","again":{"id":"2"}`: "again", `"again","again":{"retry":-9}`: "again.retry", `"ack","then":[{},{"retry":-9}]`: "then[1].retry",
			`"ack","then":[{"topic":"a*"}]`: "then[0].topic", `"ack","then":[{"if_match":"x","replace":"any"}]`: "then[0].if_match",
			`"ack","then":[` + strings.Repeat("{},", mostThen) + `{}]`: "then", `"ack","id":"2"`: "id",
		} {
			a := w.is(w.ask("all", "POST", "/v1/topics/mail/settle", fmt.Sprintf(`[{"lease":%q,"outcome":%s}]`, job["lease"], more)), 422, "invalid")
			require.Equal(b, []string{want}, a.fields(), more)
		}
		w.is(w.ask("all", "POST", "/v1/topics/mail/settle", `[]`), 422, "invalid")
		w.is(w.ask("all", "POST", "/v1/topics/mail/extend", `[]`), 422, "invalid")
		a := w.is(w.ask("all", "POST", "/v1/topics/mail/settle", `[{"lease":"x","outcome":"snooze","delay":"y"}]`), 422, "invalid")
		require.Equal(b, []string{"[0].delay"}, a.fields())
		w.is(w.ask("all", "POST", "/v1/topics/mail/settle", fmt.Sprintf(`[{"lease":%q,"outcome":"ack","id":"1"},{"lease":"x","outcome":"ack"}]`, job["lease"])), 207, "")
		require.Zero(b, w.held)
	})
}

// A consumer that dies loses its jobs when their leases end: the next one gets them, with an
// attempt more, and what the dead one sends after that is refused.
func TestLeaseEnds(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		b.Enqueue("mail", "1")
		began := time.Now()
		first := w.took("mail", `{"lease":10}`)[0]
		second := w.took("mail", `{"wait":60}`)[0]
		require.Equal(b, 10*time.Second, time.Since(began).Round(100*time.Millisecond))
		require.Equal(b, []any{"1", 2.0}, []any{second["id"], second["attempt"]})
		late := w.is(w.settles("mail", first, "ack", ""), 409, "lost-lease")
		require.Equal(b, lostExpired, late.reason())
		a := w.is(w.ask("all", "POST", "/v1/topics/mail/extend", fmt.Sprintf(`[{"lease":%q}]`, first["lease"])), 409, "lost-lease")
		require.Equal(b, "1", a.result()["id"])
		require.Contains(b, b.Get("mail", "1").Errors[0].Message, "lease of 10s")

		// Extended, it lasts as long as is asked for, and the token stays the same.
		for range 3 {
			b.Pass(20 * time.Second)
			w.is(w.ask("all", "POST", "/v1/topics/mail/extend", fmt.Sprintf(`[{"lease":%q,"for":"25s","progress":{"done":1,"total":2,"text":"half"}}]`, second["lease"])), 200, "")
		}
		b.Pass(time.Second)
		require.Equal(b, "half", b.Get("mail", "1").Progress.Text)
		w.is(w.settles("mail", second, "ack", ""), 200, "")
		w.is(w.settles("mail", second, "ack", ""), 200, "") // its answer was lost
		require.Equal(b, "ack", w.is(w.settles("mail", second, "fail", ""), 409, "settled").reason())
		b.Enqueue("mail", "2", delayq.Retry(0))
		w.took("mail", `{"lease":1}`)
		b.Pass(2 * time.Second)
		require.Equal(b, delayq.StateDead, b.State("mail", "2"), "a job that kills its consumers does not do so for ever")
		for _, wrong := range []string{`[{"lease":"x","for":0.1}]`, `[{"lease":"x","for":"13h"}]`} {
			require.Equal(b, []string{"for"}, w.is(w.ask("all", "POST", "/v1/topics/mail/extend", wrong), 422, "invalid").fields())
		}
	})
}

// A consumer learns that its job was cancelled or replaced, or that its time was over.
func TestLostLeases(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		ids := 0
		for reason, lose := range map[string]func(id string){
			lostCancelled: func(id string) { w.is(w.ask("all", "DELETE", "/v1/topics/mail/jobs/"+id, nil), 200, "") },
			lostReplaced:  func(id string) { b.Enqueue("mail", id, delayq.Replace(), delayq.ProcessIn(time.Hour)) },
			lostTimeout:   func(string) {},
		} {
			ids++
			id := fmt.Sprint(ids)
			b.Enqueue("mail", id, delayq.Timeout(5*time.Second), delayq.Backoff(time.Hour, time.Hour))
			job := w.took("mail", `{"lease":60}`)[0]
			lose(id)
			b.Pass(6 * time.Second)
			a := w.is(w.ask("all", "POST", "/v1/topics/mail/extend", fmt.Sprintf(`[{"lease":%q}]`, job["lease"])), 409, "lost-lease")
			require.Equal(b, reason, a.reason())
			a = w.is(w.settles("mail", job, "ack", ""), 409, "lost-lease")
			require.Equal(b, reason, a.reason())
		}
		a := w.is(w.settles("other", map[string]any{"lease": "AAAA"}, "ack", ""), 409, "lost-lease")
		require.Equal(b, "unknown", a.reason())
	})
}

// A consumer that has gone before the answer was written gets no jobs: they go back, and have used
// up no attempt.
func TestConsumerHangsUp(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		ctx, hangUp := context.WithCancel(b.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			r := w.request(ctx, "all", "/v1/topics/mail/take", `{"wait":60,"max":5}`)
			w.ServeHTTP(failing{}, r)
		}()
		b.Pass(time.Second)
		hangUp()
		<-done
		b.Enqueue("mail", "1")
		b.Pass(time.Second)
		require.Equal(b, delayq.StateReady, b.State("mail", "1"), "nobody waits for it")

		w.ServeHTTP(failing{}, w.request(b.Context(), "all", "/v1/topics/mail/take", `{"max":5,"lease":600}`))
		b.Pass(time.Second)
		require.Equal(b, delayq.StateReady, b.State("mail", "1"), "the answer was not written")
		jobs := w.took("mail", `{}`)
		require.EqualValues(b, 1, jobs[0]["attempt"])
		require.Empty(b, b.Get("mail", "1").Errors)
	})
}

// Of many settles at once one counts.
func TestSettlesAtOnce(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		b.Enqueue("mail", "1", delayq.Backoff(time.Hour, time.Hour))
		job := w.took("mail", `{}`)[0]
		var calls sync.WaitGroup
		got := make([]reply, 32)
		for i := range got {
			calls.Go(func() { got[i] = w.settles("mail", job, []string{"ack", "fail"}[i%2], "") })
		}
		calls.Wait()
		good := map[int]int{}
		for i, a := range got {
			if a.status == 200 {
				good[i%2]++
			} else {
				w.is(a, 409, "settled")
			}
		}
		require.Len(b, good, 1)
	})
}

// At the end takers get an empty answer at once, consumers can settle what they have, and the rest
// goes back.
func TestGracefulEnd(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		b.Enqueue("mail", "1", delayq.Backoff(time.Hour, time.Hour))
		b.Enqueue("mail", "2")
		jobs := w.took("mail", `{"max":2,"lease":600}`)
		taker, result := make(chan reply, 1), make(chan reply, 1)
		go func() { taker <- w.ask("all", "POST", "/v1/topics/mail/take", `{"wait":60}`) }()
		go func() { result <- w.ask("all", "GET", "/v1/topics/mail/jobs/2/result?wait=60", nil) }()
		b.Pass(time.Second)
		began := time.Now()
		w.end()
		require.Equal(b, "{\"jobs\":[]}\n", w.is(<-taker, 200, "").raw)
		w.is(<-result, 202, "")
		require.Zero(b, time.Since(began))
		w.is(w.settles("mail", jobs[0], "snooze", `,"delay":60`), 200, "")
		w.is(w.ask("all", "POST", "/v1/topics/mail/take", `{}`), 503, "stopping")
		<-w.done
		require.Equal(b, 5*time.Second, time.Since(began).Round(100*time.Millisecond))
		require.Equal(b, delayq.StateReady, b.State("mail", jobs[1]["id"].(string)))
		require.Equal(b, 1, b.Get("mail", jobs[1]["id"].(string)).Attempt)
		a := w.is(w.settles("mail", jobs[1], "ack", ""), 409, "lost-lease")
		require.Equal(b, lostStopped, a.reason())
		w.is(w.ask("all", "POST", "/v1/topics/new/take", `{}`), 503, "stopping")
	})
}

// A lease of another process is told apart from one that is over.
func TestTwoGateways(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		one, two := newWorld(b.T, b.RDB, queuetest.Prefix, nil), newWorld(b.T, b.RDB, queuetest.Prefix, nil)
		b.Enqueue("mail", "1")
		job := one.took("mail", `{"lease":60}`)[0]
		two.is(two.settles("mail", job, "ack", ""), 409, "foreign-lease")
		one.is(one.settles("mail", job, "ack", ""), 200, "")
		for i := range 200 {
			b.Enqueue("mail", fmt.Sprint(i))
		}
		seen := map[any]bool{}
		for range 4 {
			for _, w := range []*world{one, two} {
				for _, job := range w.took("mail", `{"max":25}`) {
					require.False(b, seen[job["id"]])
					seen[job["id"]] = true
					w.is(w.settles("mail", job, "ack", ""), 200, "")
				}
			}
		}
		require.Len(b, seen, 200)
	})
}

// A topic that nobody takes from any more is not served any more, and is again when somebody does.
func TestTopicsAreServedWhileTheyAreUsed(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := newWorld(b.T, b.RDB, queuetest.Prefix, func(c *Config) { c.MaxTopics = 2 })
		w.took("a", `{"wait":1}`)
		w.took("b", `{"wait":1}`)
		w.is(w.ask("all", "POST", "/v1/topics/c/take", `{}`), 429, "too-many")
		b.Enqueue("a", "1")
		job := w.took("a", `{"lease":"10m"}`)[0]
		b.Pass(2 * time.Minute)
		require.Len(b, w.server.Health().Topics, 1, "a consumer still has a job of it")
		b.Enqueue("c", "1")
		require.Len(b, w.took("c", `{}`), 1)
		w.is(w.settles("a", job, "ack", ""), 200, "")
		b.Pass(3 * time.Minute)
		require.Empty(b, w.server.Health().Topics)
		b.Enqueue("a", "2")
		require.Len(b, w.took("a", `{}`), 1)
	})
}

// Consumers take the jobs of all partitions of a topic, and of those that close. Each job is taken
// once.
func TestTakeFromPartitions(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		want := map[string]bool{}
		for n, ids := range [][]string{{"a", "b", "c", "d"}, {"e", "f", "g", "h"}, {"i", "j", "k", "l", "m", "n"}} {
			if n > 0 {
				require.NoError(b, b.Client.Partition(b.Context(), "mail", n+2))
			}
			for _, id := range ids {
				b.Enqueue("mail", id)
				want[id] = true
			}
		}
		require.Len(b, b.Stats("mail").Partitions.Closing, 2)
		for len(want) > 0 {
			jobs := w.took("mail", `{"max":5,"wait":10}`)
			require.NotEmpty(b, jobs)
			for _, job := range jobs {
				id := job["id"].(string)
				require.True(b, want[id], id)
				delete(want, id)
				w.is(w.settles("mail", job, "ack", ""), 200, "")
			}
		}
		require.EqualValues(b, 14, b.Counter("mail", "acked"))
		require.Zero(b, w.held)
		require.Zero(b, w.wanted)
	})
}
