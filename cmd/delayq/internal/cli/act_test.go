package cli

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// Acts on jobs that are named.
func TestGoldenActNamed(t *testing.T) {
	inWorld(t, func(w *world) {
		later := delayq.ProcessIn(time.Hour)
		for _, act := range [][]string{
			{"cancel"}, {"run"}, {"reschedule", "--in", "2h"}, {"bury", "--because", "address is a trap"}, {"revive"}, {"purge"},
		} {
			verb, flags := act[0], act[1:]
			for _, format := range formats {
				id := verb + "-" + format
				w.Enqueue("acts", id, later)
				if verb == "revive" || verb == "purge" {
					w.ok("bury", "acts", id)
				}
				w.show(append([]string{verb, "acts", id, "nobody", "-o", format}, flags...)...)
			}
		}
		w.show("jobs", "acts", "--state", "dead", "-o", "jsonl")
		for _, args := range [][]string{
			{"run", "mail:welcome", "long-1"},
			{"run", "mail:welcome", "dead-1"},
			{"bury", "mail:welcome", "long-1"},
			{"revive", "order:cancel", "order-1"},
			{"purge", "order:cancel", "order-1"},
			{"purge", "mail:welcome", "done-1"},
			{"reschedule", "order:cancel", "order-2", "--in", "4d"}, // after its expiry
			{"cancel", "order:cancel", "base64:/wByYXc="},
			{"cancel", "order:cancel", "order-1", "order-2", "nobody", "--dry-run"},
			{"revive", "order:cancel", "order-1", "--dry-run", "-o", "json"},
			{"cancel", "order:cancel"},
			{"cancel", "order:cancel", "order-1", "--all"},
			{"cancel", "order:cancel", "order-1", "--pace", "3"},
			{"reschedule", "order:cancel", "order-1"},
			{"reschedule", "order:cancel", "order-1", "--in", "1h", "--at", "+1h"},
			{"cancel", "bad{topic}", "x"},
		} {
			w.show(args...)
		}
		require.Equal(w, delayq.StateScheduled, w.State("order:cancel", "order-1"))
		w.golden("act_named")
	})
}

// Acts on jobs that are selected.
func TestGoldenActSelected(t *testing.T) {
	inWorld(t, func(w *world) {
		for i := range 20 {
			w.Enqueue("bulk", fmt.Sprintf("a-%02d", i), delayq.ProcessIn(time.Duration(i+1)*time.Hour), delayq.Header("tenant", fmt.Sprint(i%2)))
		}
		for _, format := range formats {
			w.show("cancel", "bulk", "--state", "scheduled", "--header", "tenant=1", "--dry-run", "-o", format)
		}
		w.show("cancel", "bulk", "--state", "scheduled", "--header", "tenant=1") // nobody to ask
		w.terminal, w.width = true, 100
		w.env["NO_COLOR"] = "1"
		w.stdin = "no\n"
		w.show("cancel", "bulk", "--state", "scheduled", "--header", "tenant=1")
		w.stdin = "y\n"
		w.show("cancel", "bulk", "--state", "scheduled", "--id-prefix", "a-0", "--header", "tenant=1")
		w.terminal = false
		w.show("bury", "bulk", "--until", "+4h", "--because", "too old", "--yes")
		w.show("revive", "bulk", "--all", "--yes", "--spread", "10m")
		w.show("reschedule", "bulk", "--all", "--in", "1h", "--spread", "1h", "--yes")
		w.show("run", "bulk", "--until", "+1h10m", "--yes")
		w.show("cancel", "bulk", "--state", "ready", "--all", "--yes", "-o", "json")
		w.show("bury", "bulk", "--all", "--yes", "-o", "jsonl")
		w.show("purge", "bulk", "--state", "dead", "--all", "--yes", "--pace", "1000")
		w.show("purge", "bulk", "--state", "dead", "--all", "--yes") // none are left
		for _, args := range [][]string{
			{"cancel", "bulk", "--all"}, {"cancel", "bulk", "--state", "done", "--all"}, {"revive", "bulk", "--state", "ready", "--all"},
			{"purge", "bulk", "--state", "scheduled", "--all"}, {"cancel", "bulk", "--state", "ready", "--all", "--yes", "--at-most", "0"},
			{"cancel", "bulk", "--state", "ready", "--all", "--yes", "--at-most", "-1"}, {"cancel", "bulk", "--state", "ready", "--cursor", "x", "--yes"},
			{"cancel", "bulk", "--state", "ready", "--all", "--yes", "--pace", "0"}, {"cancel", "bulk", "--state", "ready", "--attempt", "many", "--yes"},
		} {
			w.show(args...)
		}
		w.golden("act_selected")
	})
}

// Above 1,000 jobs the name of the topic is typed. --yes goes up to --at-most.
func TestCareInABulk(t *testing.T) {
	inWorld(t, func(w *world) {
		jobs := make([]delayq.NewJob, 1500)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "many", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}}
		}
		_, err := w.Client.EnqueueBatch(w.Context(), jobs)
		require.NoError(w, err)
		cancel := func(flags ...string) result {
			return w.do(append([]string{"cancel", "many", "--state", "scheduled", "--all"}, flags...)...)
		}
		w.terminal = true
		for _, answer := range []string{"y\n", "yes\n", "\n", "", "man\n"} {
			w.stdin = answer
			r := cancel()
			require.Equal(w, exitError, r.code, answer)
			require.Contains(w, r.err, "cancel 1,500 scheduled jobs of many?")
			require.Contains(w, r.err, "type the name of the topic")
			require.Contains(w, r.err, "nothing was done")
		}
		w.terminal, w.stdin = false, ""
		require.Equal(w, exitUsage, cancel().code)

		r := cancel("--yes", "--at-most", "200")
		require.Zero(w, r.code, r.err)
		require.Contains(w, r.out, "200 jobs cancelled")
		cursor := regexp.MustCompile(`--cursor (\S+)\n`).FindStringSubmatch(r.err)
		require.NotNil(w, cursor, r.err)
		r = w.do("cancel", "many", "--state", "scheduled", "--cursor", cursor[1], "--yes", "--at-most", "100")
		require.Contains(w, r.out, "100 jobs cancelled", r.err)

		w.terminal, w.stdin = true, "many\n"
		r = cancel()
		require.Zero(w, r.code, r.err)
		require.Contains(w, r.out, "1,200 jobs cancelled")
		require.Empty(w, w.ok("jobs", "many", "-o", "id"))
	})
}

// Only jobs that a command can act on are completed.
func TestCompletionOfActs(t *testing.T) {
	inWorld(t, func(w *world) {
		require.ElementsMatch(w, []string{"dead-1", "dead-2"}, w.complete("revive", "mail:welcome", ""))
		require.Equal(w, []string{"dead", "done"}, w.complete("purge", "mail:welcome", "--state", ""))
		require.Contains(w, w.complete("cancel", "--st"), "--state\t`state` of the jobs: scheduled, ready, running, dead")
	})
}

// Without --at-most, --yes acts on at most 10,000 jobs.
func TestYesHasALimit(t *testing.T) {
	b := &bulk{yes: true}
	cmd := (&app{process: &process{}}).verbCommand(&verb{name: "cancel", states: []delayq.State{delayq.StateReady}})
	limit, err := b.limit(cmd)
	require.NoError(t, err)
	require.EqualValues(t, 10_000, limit)
	b.yes = false
	limit, err = b.limit(cmd)
	require.NoError(t, err)
	require.Zero(t, limit)
}

// What selects jobs is never ignored beside IDs: nothing is done.
func TestFiltersAreNotIgnoredBesideIDs(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, flags := range [][]string{
			{"--key", "nosuch"}, {"--all"}, {"--id-prefix", "order"}, {"--state", "nosuch"}, {"--since", "1h"}, {"--header", "a=b"},
			{"--state", "scheduled", "--key", "nosuch"},
		} {
			r := w.do(append([]string{"cancel", "order:cancel", "order-1"}, flags...)...)
			require.Equal(w, exitUsage, r.code, flags)
			require.Regexp(w, "takes IDs or|allowed|takes scheduled", r.err, flags)
			w.stdin = "order-1\n"
			require.Equal(w, exitUsage, w.do(append([]string{"cancel", "order:cancel", "-"}, flags...)...).code, flags)
		}
		require.Equal(w, delayq.StateScheduled, w.State("order:cancel", "order-1"))
		require.Equal(w, delayq.StateRunning, w.State("mail:welcome", "long-1"))
		require.Equal(w, exitConflict, w.do("cancel", "mail:welcome", "long-1", "--state", "scheduled").code)
		require.Equal(w, delayq.StateRunning, w.State("mail:welcome", "long-1"))

		// --key selects jobs, as the other filters do.
		w.Enqueue("keyed", "a", delayq.Key("t-1"), delayq.ProcessIn(time.Hour))
		w.Enqueue("keyed", "b", delayq.Key("t-2"), delayq.ProcessIn(time.Hour))
		require.Equal(w, "1 job cancelled\n", w.ok("cancel", "keyed", "--state", "scheduled", "--key", "t-1", "--yes"))
		require.Equal(w, "b\n", w.ok("jobs", "keyed", "-o", "id"))
	})
}

// customers fills several topics and states with jobs of customers.
func (w *world) customers() {
	for i := range 6 {
		customer := delayq.Header("customer", fmt.Sprint(i%2))
		w.Enqueue("a:due", fmt.Sprint("due-", i), customer, delayq.ProcessIn(time.Duration(i+1)*time.Hour))
		w.Enqueue("b:now", fmt.Sprint("now-", i), customer)
		w.Enqueue("c:dead", fmt.Sprint("dead-", i), customer, delayq.ProcessIn(time.Hour))
		require.NoError(w, w.Client.Bury(w.Context(), "c:dead", fmt.Sprint("dead-", i), "no address"))
	}
}

// One command acts on the jobs of a customer in all topics and states, and a dry run shows how many
// there are where.
func TestGoldenActOnAllTopics(t *testing.T) {
	inWorld(t, func(w *world) {
		w.customers()
		cancel := []string{"cancel", "--all-topics", "--header", "customer=1"}
		for _, format := range formats {
			w.show(append(cancel, "--dry-run", "-o", format)...)
		}
		w.show(cancel...) // nobody to ask
		w.terminal, w.width = true, 100
		w.env["NO_COLOR"] = "1"
		w.stdin = "n\n"
		w.show(cancel...)
		w.terminal = false
		w.show("cancel", "b:now", "--header", "customer=1", "--dry-run") // all states of one topic
		w.show(append(cancel, "--yes", "--at-most", "4")...)
		w.show(append(cancel, "--yes")...)
		w.show(append(cancel, "--yes")...)
		w.show("revive", "--all-topics", "--error", "no address", "--yes", "-o", "json")
		w.show("purge", "--all-topics", "--id-prefix", "none", "--yes")
		for _, args := range [][]string{
			{"cancel", "--all-topics"}, {"cancel", "--all-topics", "--all"}, {"cancel", "a:due", "--all-topics", "--all", "--state", "scheduled"}, {"cancel", "--all-topics", "--cursor", "x", "--state", "dead"},
			{"cancel", "a:due", "--header", "customer=1", "--cursor", "x"}, {"cancel", "--all-topics", "--header", ""}, {"cancel"},
		} {
			r := w.show(args...)
			require.Equal(w, exitUsage, r.code, args)
		}
		require.Equal(w, "due-0\ndue-2\ndue-4\n", w.ok("jobs", "a:due", "-o", "id"))
		w.golden("act_all_topics")
	})
}

// --by moves each due time, once, from whichever side.
func TestGoldenRescheduleBy(t *testing.T) {
	inWorld(t, func(w *world) {
		w.customers()
		dues := func(topic string) map[string]time.Time {
			found := map[string]time.Time{}
			for _, state := range []delayq.State{delayq.StateScheduled, delayq.StateReady} {
				page, err := w.Inspector.Jobs(w.Context(), delayq.Query{Topic: topic, State: state, Limit: 1000})
				require.NoError(w, err)
				for _, job := range page.Jobs {
					found[job.ID] = job.Due
				}
			}
			return found
		}
		before := dues("a:due")
		w.show("reschedule", "a:due", "--all", "--by", "+24h", "--yes")
		w.show("reschedule", "a:due", "--id-prefix", "due", "--by", "-90m", "--yes")
		w.show("reschedule", "a:due", "due-0", "none", "--by", "30m")
		w.show("reschedule", "a:due", "--all", "--by", "1h", "--dry-run")
		for id, due := range dues("a:due") {
			by := 22*time.Hour + 30*time.Minute
			if id == "due-0" {
				by += 30 * time.Minute
			}
			require.Equal(w, before[id].Add(by), due, id)
		}
		now := dues("b:now")
		w.show("reschedule", "b:now", "--state", "ready", "--all", "--by", "+2h", "--yes")
		for id, due := range dues("b:now") {
			require.Equal(w, now[id].Add(2*time.Hour), due, id)
		}
		w.show("reschedule", "--all-topics", "--header", "customer=1", "--by", "+1h", "--yes", "--at-most", "4")
		for _, flags := range [][]string{{"--by", "0s"}, {"--by", "1h", "--in", "1h"}, {"--by", "1h", "--spread", "1h"}, {"--by", "+-1h"}, {"--by", "soon"}, {"--by", ""}, {}} {
			require.Equal(w, exitUsage, w.show(append([]string{"reschedule", "a:due", "--all", "--yes"}, flags...)...).code, flags)
		}

		// Many jobs, whose new due times are among the old ones.
		jobs := make([]delayq.NewJob, 2500)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "many", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.ProcessIn(time.Duration(i+10) * time.Minute)}}
		}
		_, err := w.Client.EnqueueBatch(w.Context(), jobs)
		require.NoError(w, err)
		was := map[string]time.Time{}
		for _, r := range allDue(w, "many") {
			was[r.ID] = r.Due
		}
		for _, by := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
			require.Contains(w, w.ok("reschedule", "many", "--all", "--by", by.String(), "--yes"), "2,500 jobs rescheduled")
			for _, r := range allDue(w, "many") {
				require.Equal(w, was[r.ID].Add(by), r.Due, r.ID)
				was[r.ID] = r.Due
			}
		}
		r := w.do("reschedule", "many", "--all", "--by", "1h", "--yes", "--at-most", "100")
		require.Zero(w, r.code, r.err)
		require.Contains(w, r.out, "100 jobs rescheduled")
		w.golden("reschedule_by")
	})
}

// allDue returns all scheduled jobs of a topic.
func allDue(w *world, topic string) (list []*delayq.JobInfo) {
	q := delayq.Query{Topic: topic, State: delayq.StateScheduled, Limit: 1000}
	for {
		page, err := w.Inspector.Jobs(w.Context(), q)
		require.NoError(w, err)
		list = append(list, page.Jobs...)
		if q.Cursor = page.Next; q.Cursor == "" {
			return list
		}
	}
}

// --at-most is a success when it has done what it was asked. The bound of --yes is not asked for.
func TestAtMostIsASuccess(t *testing.T) {
	inWorld(t, func(w *world) {
		w.customers()
		r := w.do("cancel", "a:due", "--state", "scheduled", "--all", "--yes", "--at-most", "2")
		require.Zero(w, r.code)
		require.Equal(w, "2 jobs cancelled\n", r.out)
		require.Regexp(w, `^jobs are left; to go on: --cursor \S+\n$`, r.err)
		r = w.do("cancel", "--all-topics", "--header", "customer=1", "--yes", "--at-most", "2")
		require.Zero(w, r.code)
		require.Contains(w, r.err, "jobs are left")
	})
}
