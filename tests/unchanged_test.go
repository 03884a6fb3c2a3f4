package tests

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// An editing is a call that edits the job x of "topic".
type editing struct {
	name   string
	states []delayq.State // in which it succeeds
	ends   bool           // afterwards the job that was edited is no more
	keyed  bool           // it needs a key
	do     func(t *testing.T, c *delayq.Client, info *delayq.JobInfo) error
}

func reschedule(t *testing.T, c *delayq.Client, info *delayq.JobInfo, due delayq.DueOption) error {
	return c.Reschedule(t.Context(), "topic", "x", due, delayq.IfUnchanged(info))
}

// editings are all calls that IfUnchanged is an option of.
var editings = []editing{
	{"reschedule to now", []delayq.State{delayq.StateScheduled, delayq.StateReady}, false, false, func(t *testing.T, c *delayq.Client, info *delayq.JobInfo) error {
		return reschedule(t, c, info, delayq.ProcessIn(0))
	}},
	{"reschedule to the same time", []delayq.State{delayq.StateScheduled}, false, false, func(t *testing.T, c *delayq.Client, info *delayq.JobInfo) error {
		return reschedule(t, c, info, delayq.ProcessAt(info.Due))
	}},
	{"reschedule batch", []delayq.State{delayq.StateScheduled, delayq.StateReady}, false, false, func(t *testing.T, c *delayq.Client, info *delayq.JobInfo) error {
		list := []delayq.NewDue{{Topic: "topic", ID: "x", Due: delayq.ProcessIn(time.Minute)}}
		results, err := c.RescheduleBatch(t.Context(), list, delayq.IfUnchanged(info))
		require.Equal(t, err == nil, results[0].Err == nil)
		return results[0].Err
	}},
	{"set priority", []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead}, false, true, func(t *testing.T, c *delayq.Client, info *delayq.JobInfo) error {
		return c.SetPriority(t.Context(), "topic", "x", time.Second, delayq.IfUnchanged(info))
	}},
	{"bury", []delayq.State{delayq.StateScheduled, delayq.StateReady}, false, false, func(t *testing.T, c *delayq.Client, info *delayq.JobInfo) error {
		return c.Bury(t.Context(), "topic", "x", "why", delayq.IfUnchanged(info))
	}},
	{"revive", []delayq.State{delayq.StateDead}, false, false, func(t *testing.T, c *delayq.Client, info *delayq.JobInfo) error {
		return c.Revive(t.Context(), "topic", "x", delayq.IfUnchanged(info))
	}},
	{"delete", []delayq.State{delayq.StateDone}, true, false, func(t *testing.T, c *delayq.Client, info *delayq.JobInfo) error {
		return c.Delete(t.Context(), "topic", "x", delayq.IfUnchanged(info))
	}},
	{"dequeue", unfinished, true, false, func(t *testing.T, c *delayq.Client, info *delayq.JobInfo) error {
		state, err := c.Dequeue(t.Context(), "topic", "x", delayq.IfUnchanged(info), delayq.Tombstone(0))
		if err == nil {
			require.Equal(t, info.State, state)
		}
		return err
	}},
	{"cancel batch", unfinished, true, false, func(t *testing.T, c *delayq.Client, info *delayq.JobInfo) error {
		results, _ := c.CancelBatch(t.Context(), []delayq.JobRef{{Topic: "topic", ID: "x"}}, delayq.IfUnchanged(info))
		return results[0].Err
	}},
	{"replace", unfinished, true, false, func(t *testing.T, c *delayq.Client, info *delayq.JobInfo) error {
		_, err := c.Enqueue(t.Context(), "topic", "x", nil, append(info.Options(), delayq.Replace(), delayq.IfUnchanged(info))...)
		return err
	}},
	{"replace, unique", unfinished, true, false, func(t *testing.T, c *delayq.Client, info *delayq.JobInfo) error {
		_, err := c.Enqueue(t.Context(), "topic", "x", nil, delayq.Replace(), delayq.UniqueFor(time.Hour), delayq.ExpireIn(time.Hour), delayq.IfUnchanged(info))
		return err
	}},
	{"replace dead", []delayq.State{delayq.StateDead}, true, false, func(t *testing.T, c *delayq.Client, info *delayq.JobInfo) error {
		job := delayq.NewJob{Topic: "topic", ID: "x", Options: []delayq.JobOption{delayq.ReplaceDead(), delayq.IfUnchanged(info)}}
		results, _ := c.EnqueueBatch(t.Context(), []delayq.NewJob{job})
		return results[0].Err
	}},
}

var unfinished = []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead}

func (e *editing) fits(info *delayq.JobInfo) bool {
	for _, s := range e.states {
		if s == info.State {
			return !e.keyed || info.Key != ""
		}
	}
	return false
}

// Of sixteen editors that have read a job, one succeeds, whatever they do and whatever the state,
// and the others know that they have not.
func TestOneOfSixteenEditorsWins(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t)
	for _, life := range queuetest.Lives {
		if life.State == "" && life.Name != "kept as done" {
			continue
		}
		t.Run(strings.ReplaceAll(life.Name, " ", "_"), func(t *testing.T) {
			for _, e := range editings {
				for _, opts := range [][]delayq.JobOption{nil, {delayq.Key("k")}} {
					f := queuetest.NewFixture(t, rdb, delayq.Defaults(opts...))
					life.Lead(f, "x")
					if info := f.Get("x"); e.fits(info) {
						rounds(t, f, &e)
					}
				}
			}
		})
	}
}

// rounds lets sixteen editors edit the job several times.
func rounds(t *testing.T, f *queuetest.Fixture, e *editing) {
	t.Helper()
	var read []*delayq.JobInfo
	for range 3 {
		info, err := f.Client.Get(t.Context(), "topic", "x")
		if err != nil || !e.fits(info) {
			return
		}
		read = append(read, info)
		errs := make([]error, 16)
		var all sync.WaitGroup
		clients := []*delayq.Client{f.Client, delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix))}
		for n := range errs {
			all.Go(func() { errs[n] = e.do(t, clients[n%2], info) })
		}
		all.Wait()
		won := 0
		for _, err := range errs {
			switch {
			case err == nil:
				won++
			case errors.Is(err, delayq.ErrChanged):
			case e.ends && errors.Is(err, delayq.ErrNotFound):
			default:
				require.NoError(t, err, e.name)
			}
		}
		require.Equal(t, 1, won, "%s of %s, %v", e.name, info.State, errs)
		for _, old := range read {
			require.Error(t, e.do(t, f.Client, old), "%s once more", e.name)
		}
	}
}

// detours lead a job away from how it is, and back to what looks the same.
var detours = []struct {
	name  string
	state delayq.State
	keyed bool
	take  func(f *queuetest.Fixture, info *delayq.JobInfo, held hand.Held)
}{
	{"moved and moved back", delayq.StateScheduled, false, func(f *queuetest.Fixture, info *delayq.JobInfo, _ hand.Held) {
		for _, due := range []time.Time{info.Due.Add(time.Hour), info.Due} {
			require.NoError(f.T, f.Client.Reschedule(f.T.Context(), "topic", "x", delayq.ProcessAt(due)))
		}
	}},
	{"moved to where it is", delayq.StateScheduled, false, func(f *queuetest.Fixture, info *delayq.JobInfo, _ hand.Held) {
		require.NoError(f.T, f.Client.Reschedule(f.T.Context(), "topic", "x", delayq.ProcessAt(info.Due)))
	}},
	{"taken and given back", delayq.StateReady, false, func(f *queuetest.Fixture, _ *delayq.JobInfo, _ hand.Held) {
		require.Equal(f.T, "o", f.Hand.Return(f.Hand.TakeOne("x")))
	}},
	{"rescheduled to now", delayq.StateReady, false, func(f *queuetest.Fixture, _ *delayq.JobInfo, _ hand.Held) {
		require.NoError(f.T, f.Client.Reschedule(f.T.Context(), "topic", "x", delayq.ProcessIn(0)))
	}},
	{"failed and run at once", delayq.StateReady, false, func(f *queuetest.Fixture, _ *delayq.JobInfo, _ hand.Held) {
		require.Equal(f.T, "o", f.Hand.Retry(0, f.Hand.TakeOne("x")))
		f.Hand.Promote()
	}},
	{"snoozed for no time", delayq.StateReady, false, func(f *queuetest.Fixture, _ *delayq.JobInfo, _ hand.Held) {
		require.Equal(f.T, "o", f.Hand.Snooze(0, f.Hand.TakeOne("x")))
		f.Hand.Promote()
	}},
	{"given back and taken", delayq.StateRunning, false, func(f *queuetest.Fixture, _ *delayq.JobInfo, held hand.Held) {
		require.Equal(f.T, "o", f.Hand.Return(held))
		f.Hand.TakeOne("x")
	}},
	{"revived and buried", delayq.StateDead, false, func(f *queuetest.Fixture, _ *delayq.JobInfo, _ hand.Held) {
		require.NoError(f.T, f.Client.Revive(f.T.Context(), "topic", "x"))
		require.NoError(f.T, f.Client.Bury(f.T.Context(), "topic", "x", "why"))
	}},
	{"replaced by the like", delayq.StateScheduled, false, func(f *queuetest.Fixture, info *delayq.JobInfo, _ hand.Held) {
		f.Enqueue("x", append(info.Options(), delayq.Replace())...)
	}},
	{"cancelled and enqueued", delayq.StateReady, false, func(f *queuetest.Fixture, info *delayq.JobInfo, _ hand.Held) {
		f.Dequeue("x")
		f.Enqueue("x", info.Options()...)
	}},
	{"completed twice", delayq.StateDone, false, func(f *queuetest.Fixture, _ *delayq.JobInfo, _ hand.Held) {
		f.Enqueue("x", delayq.Retention(time.Hour))
		require.Equal(f.T, "o", f.Hand.Ack(f.Hand.TakeOne("x")))
	}},
	{"more and less urgent", "", true, func(f *queuetest.Fixture, info *delayq.JobInfo, _ hand.Held) {
		for _, ahead := range []time.Duration{info.Priority + time.Second, info.Priority} {
			require.NoError(f.T, f.Client.SetPriority(f.T.Context(), "topic", "x", ahead))
		}
	}},
}

// No two moments of a job are the same to IfUnchanged if anything was done with the job between
// them, even if it looks as before. What is not as it was read is left alone.
func TestWhatWasReadBeforeAnEditIsChanged(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t)
	for _, life := range queuetest.Lives {
		for _, opts := range [][]delayq.JobOption{nil, {delayq.Key("k")}} {
			for _, d := range detours {
				f := queuetest.NewFixture(t, rdb, delayq.Defaults(opts...))
				held := life.Lead(f, "x")
				info, err := f.Client.Get(t.Context(), "topic", "x")
				if err != nil || d.state != "" && d.state != info.State || d.keyed && (info.Key == "" || info.State == delayq.StateDone) {
					continue
				}
				name := life.Name + ", " + d.name
				old := []*delayq.JobInfo{info}
				for range 2 {
					d.take(f, f.Get("x"), held)
					now := f.Get("x")
					require.Equal(t, info.State, now.State, name)
					if d.keyed {
						require.Equal(t, info.Due, now.Due, name)
						require.Equal(t, info.DueReason, now.DueReason, name)
					}
					before := f.Dump()
					for _, e := range editings {
						for _, was := range old {
							if e.fits(was) {
								require.ErrorIs(t, e.do(t, f.Client, was), delayq.ErrChanged, "%s: %s", name, e.name)
							}
						}
					}
					require.Equal(t, before, f.Dump(), name)
					if old = append(old, now); d.state == delayq.StateRunning {
						break // the lease is another one
					}
				}
			}
		}
	}
}
