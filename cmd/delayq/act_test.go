package main

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
		require.Equal(w, exitPartly, r.code)
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
			{"--state", "dead"}, {"--state", "scheduled"}, {"--key", "nosuch"}, {"--all"}, {"--id-prefix", "order"}, {"--state", "nosuch"}, {"--since", "1h"}, {"--header", "a=b"},
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
		require.Equal(w, exitUsage, w.do("cancel", "mail:welcome", "long-1", "--state", "scheduled").code)
		require.Equal(w, delayq.StateRunning, w.State("mail:welcome", "long-1"))

		// --key selects jobs, as the other filters do.
		w.Enqueue("keyed", "a", delayq.Key("t-1"), delayq.ProcessIn(time.Hour))
		w.Enqueue("keyed", "b", delayq.Key("t-2"), delayq.ProcessIn(time.Hour))
		require.Equal(w, "1 job cancelled\n", w.ok("cancel", "keyed", "--state", "scheduled", "--key", "t-1", "--yes"))
		require.Equal(w, "b\n", w.ok("jobs", "keyed", "-o", "id"))
	})
}
