package tests

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
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
	{"lapsed", delayq.StateReady, false, func(f *queuetest.Fixture, info *delayq.JobInfo, _ hand.Held) {
		if info.Attempt > 1 { // then it backs off
			require.NoError(f.T, f.Client.Reschedule(f.T.Context(), "topic", "x", delayq.ProcessIn(0)))
			return
		}
		require.Len(f.T, f.Hand.Take(1, 0), 1)
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

// A job that was read in a list can be edited so too, unless its record was too long for the list.
func TestIfUnchangedOfListedJobs(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		long := make([]byte, 40<<10)
		for id, payload := range map[string][]byte{"a": nil, "b": []byte("payload"), "long": long} {
			_, err := f.Client.Enqueue(ctx, "topic", id, payload, delayq.ProcessIn(time.Hour), delayq.Header("h", strings.Repeat("x", 2000)))
			require.NoError(t, err)
		}
		ways := map[string]func(id string) (*delayq.JobInfo, error){
			"get": func(id string) (*delayq.JobInfo, error) { return f.Client.Get(ctx, "topic", id) },
			"job": func(id string) (*delayq.JobInfo, error) { return f.Inspector.Job(ctx, "topic", id) },
			"batch": func(id string) (*delayq.JobInfo, error) {
				results, err := f.Client.GetBatch(ctx, []delayq.JobRef{{Topic: "topic", ID: id}})
				return results[0].Job, err
			},
			"explain": func(id string) (*delayq.JobInfo, error) {
				e, err := f.Inspector.Explain(ctx, "topic", id)
				return e.Job, err
			},
			"jobs": func(id string) (*delayq.JobInfo, error) {
				page, err := f.Inspector.Jobs(ctx, delayq.Query{Topic: "topic", State: delayq.StateScheduled, IDPrefix: id})
				require.Len(t, page.Jobs, 1)
				return page.Jobs[0], err
			},
		}
		for name, read := range ways {
			for _, id := range []string{"a", "b", "long"} {
				info, err := read(id)
				require.NoError(t, err)
				move := func() error {
					return f.Client.Reschedule(ctx, "topic", id, delayq.ProcessIn(time.Hour), delayq.IfUnchanged(info))
				}
				if info.Partial {
					require.Equal(t, "jobs long", name+" "+id)
					require.ErrorIs(t, move(), delayq.ErrInvalid)
					continue
				}
				require.NoError(t, move(), "%s %s", name, id)
				require.ErrorIs(t, move(), delayq.ErrChanged, "%s %s", name, id)
			}
		}
	})
}

// Batches have an info of each job, and single jobs that have changed are left alone. Records of
// more than a MiB are read one in a call.
func TestIfUnchangedOfManyJobs(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		var refs []delayq.JobRef
		var dues []delayq.NewDue
		large := make([]byte, 700<<10)
		for _, id := range []string{"a", "b", "c", "d"} {
			_, err := f.Client.Enqueue(ctx, "topic", id, large, delayq.ProcessIn(time.Hour))
			require.NoError(t, err)
			refs = append(refs, delayq.JobRef{Topic: "topic", ID: id})
			dues = append(dues, delayq.NewDue{Topic: "topic", ID: id, Due: delayq.ProcessIn(0)})
		}
		got, err := f.Client.GetBatch(ctx, refs)
		require.NoError(t, err)
		infos := []*delayq.JobInfo{got[0].Job, got[1].Job, got[3].Job}
		require.NoError(t, f.Client.Reschedule(ctx, "topic", "b", delayq.ProcessAt(got[1].Job.Due)))

		moved, err := f.Client.RescheduleBatch(ctx, dues, delayq.IfUnchanged(infos...))
		require.Error(t, err)
		require.NoError(t, moved[0].Err)
		require.ErrorIs(t, moved[1].Err, delayq.ErrChanged)
		require.ErrorIs(t, moved[2].Err, delayq.ErrInvalid, "without an info")
		require.NoError(t, moved[3].Err)

		got, err = f.Client.GetBatch(ctx, refs)
		require.NoError(t, err)
		infos = []*delayq.JobInfo{infos[0], got[1].Job, got[2].Job, got[3].Job}
		cancelled, err := f.Client.CancelBatch(ctx, refs, delayq.IfUnchanged(infos...))
		require.ErrorIs(t, err, delayq.ErrChanged)
		require.ErrorIs(t, cancelled[0].Err, delayq.ErrChanged)
		require.Equal(t, []delayq.State{delayq.StateScheduled, delayq.StateScheduled, delayq.StateReady},
			[]delayq.State{cancelled[1].State, cancelled[2].State, cancelled[3].State})
		require.Equal(t, delayq.StateReady, f.Get("a").State)
	})
}

// A call whose IfUnchanged has no sense is refused before it is sent.
func TestIfUnchangedRefuses(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		f.Enqueue("x", delayq.ProcessIn(time.Hour))
		f.Enqueue("y", delayq.ProcessIn(time.Hour))
		info, other := f.Get("x"), f.Get("y")
		before := f.Dump()
		enqueue := func(opts ...delayq.JobOption) error {
			_, err := f.Client.Enqueue(ctx, "topic", "x", nil, opts...)
			return err
		}
		move := func(opts ...delayq.EditOption) error {
			return f.Client.Reschedule(ctx, "topic", "x", delayq.ProcessIn(time.Minute), opts...)
		}
		made := *info
		made.Job = delayq.Job{Topic: "topic", ID: "x"}
		for what, err := range map[string]error{
			"nil":                    move(delayq.IfUnchanged(nil)),
			"no info":                move(delayq.IfUnchanged()),
			"a nil option":           move(nil),
			"another job":            move(delayq.IfUnchanged(other)),
			"made by hand":           move(delayq.IfUnchanged(&delayq.JobInfo{Job: delayq.Job{Topic: "topic", ID: "x"}, State: delayq.StateReady})),
			"another job's priority": f.Client.SetPriority(ctx, "topic", "x", time.Second, delayq.IfUnchanged(other)),
			"revive":                 f.Client.Revive(ctx, "topic", "x", delayq.IfUnchanged(info)),
			"delete":                 f.Client.Delete(ctx, "topic", "x", delayq.IfUnchanged(info)),
			"enqueue":                enqueue(delayq.IfUnchanged(info)),
			"replace dead":           enqueue(delayq.ReplaceDead(), delayq.IfUnchanged(info)),
			"replace another":        enqueue(delayq.Replace(), delayq.IfUnchanged(other)),
			"defaults": func() error {
				_, err := delayq.NewClient(f.RDB, delayq.Defaults(delayq.IfUnchanged(info))).Get(ctx, "topic", "x")
				return err
			}(),
			"schedule": f.Client.Schedule(ctx, "topic", "s", delayq.Every(time.Hour), nil, delayq.IfUnchanged(info)),
		} {
			require.ErrorIs(t, err, delayq.ErrInvalid, what)
		}
		require.Equal(t, before, f.Dump())
		require.ErrorIs(t, move(delayq.IfUnchanged(&made)), delayq.ErrChanged, "its nonce is missing")
		require.NoError(t, move(delayq.IfUnchanged(other, info)))

		require.NoError(t, f.Client.Bury(ctx, "topic", "y", "why"))
		err := f.Client.Bury(ctx, "topic", "y", "why", delayq.IfUnchanged(other))
		require.ErrorIs(t, err, delayq.ErrChanged)
		require.ErrorIs(t, err, delayq.ErrDead, "that too")
		err = f.Client.Bury(ctx, "topic", "y", "why", delayq.IfUnchanged(f.Get("y")))
		require.NotErrorIs(t, err, delayq.ErrChanged)
		require.ErrorIs(t, err, delayq.ErrDead)
		f.Dequeue("y")
		_, err = f.Client.Dequeue(ctx, "topic", "y", delayq.IfUnchanged(other))
		require.ErrorIs(t, err, delayq.ErrNotFound)
		_, err = f.Client.Enqueue(ctx, "topic", "y", nil, delayq.Replace(), delayq.IfUnchanged(other))
		require.ErrorIs(t, err, delayq.ErrChanged, "nothing is replaced")
	})
}

// What a caller of v0.1.0 knows of a job counts as before, and a text that no release sends fits no
// job.
func TestTextsOfExpectations(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, ready := range []bool{false, true} {
			due := delayq.ProcessIn(time.Hour)
			if ready {
				due = delayq.ProcessIn(0)
			}
			cancels := func(known string) bool {
				f.Enqueue("x", due, delayq.Replace())
				info := f.Get("x")
				known = strings.NewReplacer("DUE", strconv.FormatInt(info.Due.UnixMilli(), 10), "NONCE", hex.EncodeToString([]byte(info.Nonce()))).Replace(known)
				r, err := f.Hand.TryCancelKnown("x", known)
				require.NoError(t, err, known)
				if letter := r.Text(2); letter == "c" {
					return false
				}
				return true
			}
			for known, fits := range map[string]bool{
				"s": !ready, "sDUE": !ready, "s1": false, "r": ready, "u": false, "d": false, "": true,
				"s|999|NONCE||": !ready, "sDUE|999|NONCE||": !ready, "r|999|NONCE||": ready, "s1|999|NONCE||": false,
				"s|9|NONCE||": false, "r|9|NONCE||": false, "r|999|NONCE|0|": false, "r|999|NONCE||x": false, "r|999|0011223344556677||": false,
				"r|": false, "r||": false, "r|999|NONCE|": false, "r||NONCE||": false, "r|x|NONCE||": false, "r|999|||": false, "s|999|||": false,
				"rx": false, "r-": false, "r1": false, "sx": false, "s-": false, "|": false, "1": false, "sr": false, "rDUE": false, "r|999|NONCE||\x00": false,
			} {
				require.Equal(t, fits, cancels(known), "%q of a job that is ready: %v", known, ready)
			}
		}
	})
}

// Clients and servers of v0.1.0 write entries without a number. Those of this release are different
// from all before nevertheless.
func TestEditsBesideThoseOfTheLastRelease(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x", delayq.ProcessIn(time.Hour))
		at := f.Get("x").Due
		old := fmt.Sprintf("%d reschedule 0 0 0", at.UnixMilli())
		for range 3 {
			require.NoError(t, f.RDB.HSet(t.Context(), f.Key("moved"), "x", old).Err())
			info := f.Get("x")
			for range 3 {
				require.NoError(t, f.Client.Reschedule(t.Context(), "topic", "x", delayq.ProcessAt(at)))
				entry := f.RDB.HGet(t.Context(), f.Key("moved"), "x").Val()
				require.Regexp(t, `^\d{13} reschedule\.\d{13} 0 0 0$`, entry)
				require.ErrorIs(t, reschedule(t, f.Client, info, delayq.ProcessIn(0)), delayq.ErrChanged)
				require.Equal(t, delayq.DueReschedule, f.Get("x").DueReason)
			}
		}
		require.NoError(t, f.Client.Bury(t.Context(), "topic", "x", "why"))
		require.Regexp(t, `^\d{13} bury\.\d{13} 0 0 0$`, f.RDB.HGet(t.Context(), f.Key("moved"), "x").Val())
		require.NoError(t, f.Client.Revive(t.Context(), "topic", "x"))
		require.Regexp(t, `^\d{13} revive\.\d{13} 0 0 1$`, f.RDB.HGet(t.Context(), f.Key("moved"), "x").Val())
		// The clock of a new master is behind.
		require.NoError(t, f.RDB.HSet(t.Context(), f.Key("moved"), "x", fmt.Sprintf("%d reschedule.9000000000000 0 0 0", at.UnixMilli())).Err())
		require.NoError(t, f.Client.Reschedule(t.Context(), "topic", "x", delayq.ProcessAt(at)))
		require.Equal(t, fmt.Sprintf("%d reschedule.9000000000001 0 0 0", at.UnixMilli()), f.RDB.HGet(t.Context(), f.Key("moved"), "x").Val())
	})
}
