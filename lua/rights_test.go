package lua_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// A caller makes calls with the rights of a role.
type caller struct {
	*client
	hand  *Hand
	ctx   context.Context
	topic string
}

// A deed is a call on a stage. It succeeds if Redis refuses nothing.
type deed struct {
	call  string            // in the table of docs/security.md
	stage func(admin *Hand) // what the stage needs beside; nil: nothing
	do    func(c *caller) error
}

// just is the error of a call.
func just[T any](_ T, err error) error { return err }

// accept is nil for an error that the call returns though Redis has refused nothing.
func accept(err, fine error) error {
	if errors.Is(err, fine) {
		return nil
	}
	return err
}

// lone stores a large job with the script for a job that is sent alone. A Client uses that when
// replies have shown Redis's clock.
func lone(when string) func(c *caller) error {
	return func(c *caller) error {
		head, tail := c.hand.Record(when, 0)
		return just(c.hand.TrySendLone("new", head, tail+strings.Repeat("x", 3000), when))
	}
}

// deeds are all calls of a Client and of an Inspector that ask Redis anything, and Run of a server.
// Where a call does different things for different arguments, each has an entry: all of them must
// be allowed, or none.
var deeds = []deed{
	{"Enqueue", nil, func(c *caller) error { return just(c.Enqueue(c.ctx, c.topic, "new", nil)) }},
	{"Enqueue", nil, func(c *caller) error { return just(c.Enqueue(c.ctx, c.topic, "", nil)) }},
	{"Enqueue", nil, lone("+0")},
	{"Enqueue", nil, lone("+900")},
	{"Enqueue", nil, func(c *caller) error {
		return just(c.Enqueue(c.ctx, c.topic, "", nil, delayq.ProcessIn(time.Second/2)))
	}},
	{"Enqueue", nil, func(c *caller) error {
		return accept(just(c.Enqueue(c.ctx, c.topic, "scheduled", nil)), delayq.ErrDuplicate)
	}},
	{"Enqueue", nil, func(c *caller) error {
		return just(c.Enqueue(c.ctx, c.topic, "new", nil, delayq.Key("another"), delayq.Priority(time.Minute)))
	}},
	{"Enqueue", nil, replace("running", delayq.ProcessIn(time.Second/2))},
	{"Enqueue", nil, replace("dead")},
	{"Enqueue", nil, merge("scheduled")},
	{"Enqueue", nil, merge("ready")},
	{"Enqueue", nil, merge("running")},
	{"Enqueue", nil, merge("dead")},
	{"Enqueue", nil, merge("new")},
	{"Enqueue", followedOne, merge("running")},
	{"Enqueue", followedOne, replace("running")},
	{"Dequeue", followedOne, cancel("running")},
	{"Enqueue", closed, func(c *caller) error {
		return just(c.Enqueue(c.ctx, c.topic, "new", nil, delayq.UniqueFor(time.Hour)))
	}},
	{"Enqueue", closed, func(c *caller) error {
		return accept(just(c.Enqueue(c.ctx, c.topic, "closed", nil)), delayq.ErrDuplicate)
	}},
	{"EnqueueBatch", nil, func(c *caller) error {
		return just(c.EnqueueBatch(c.ctx, []delayq.NewJob{{Topic: c.topic, ID: "new"}, {Topic: c.topic, ID: "later", Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}}}))
	}},
	{"Dequeue", nil, cancel("scheduled")},
	{"Dequeue", nil, cancel("ready")},
	{"Dequeue", nil, cancel("running")},
	{"Dequeue", nil, cancel("dead")},
	{"Dequeue", nil, cancel("keyed")},
	{"Dequeue", bar, cancel("first")},
	{"Dequeue", closed, cancel("ready", delayq.Tombstone(time.Hour))},
	{"Dequeue", closed, func(c *caller) error {
		return accept(cancel("closed", delayq.Tombstone(0))(c), delayq.ErrNotFound)
	}},
	{"Wait", nil, func(c *caller) error {
		if err := callCancelled(c); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
		defer cancel()
		return accept(just(c.Wait(ctx, c.topic, "dead")), delayq.ErrDead)
	}},
	{"Call", nil, callCancelled},
	{"Start", nil, startFlow},
	{"Start", nil, func(c *caller) error { return errors.Join(startFlow(c), just(c.Dequeue(c.ctx, c.topic, "flow"))) }},
	{"OpenGroup", nil, func(c *caller) error { return just(openGroup(c)) }},
	{"Group", nil, func(c *caller) error {
		g, err := openGroup(c)
		if err != nil {
			return err
		}
		err = g.Add(c.ctx, delayq.NewJob{Topic: c.topic, ID: "member"})
		return errors.Join(err, c.Group(c.topic, "flow").Close(c.ctx))
	}},
	{"CancelBatch", nil, func(c *caller) error {
		return just(c.CancelBatch(c.ctx, []delayq.JobRef{{Topic: c.topic, ID: "scheduled"}, {Topic: c.topic, ID: "ready"}, {Topic: c.topic, ID: "running"}, {Topic: c.topic, ID: "dead"}}))
	}},
	{"Reschedule", nil, func(c *caller) error { return c.Reschedule(c.ctx, c.topic, "scheduled", delayq.ProcessIn(0)) }},
	{"Reschedule", nil, func(c *caller) error { return c.Reschedule(c.ctx, c.topic, "ready", delayq.ProcessIn(time.Second/2)) }},
	{"Reschedule", nil, func(c *caller) error {
		return accept(c.Reschedule(c.ctx, c.topic, "running", delayq.ProcessIn(0)), delayq.ErrRunning)
	}},
	{"RescheduleBatch", nil, func(c *caller) error {
		return just(c.RescheduleBatch(c.ctx, []delayq.NewDue{{Topic: c.topic, ID: "scheduled", Due: delayq.ProcessIn(0)}, {Topic: c.topic, ID: "ready", Due: delayq.ProcessIn(time.Second / 2)}}))
	}},
	{"SetPriority", nil, func(c *caller) error {
		err := just(c.Enqueue(c.ctx, c.topic, "of a key", nil, delayq.Key("key"), delayq.ProcessIn(time.Hour)))
		return errors.Join(err, c.SetPriority(c.ctx, c.topic, "of a key", time.Hour))
	}},
	{"Schedule", nil, func(c *caller) error { return c.Schedule(c.ctx, c.topic, "new", delayq.Every(time.Hour), nil) }},
	{"ScheduleBatch", nil, func(c *caller) error {
		return just(c.ScheduleBatch(c.ctx, []delayq.NewSchedule{{Topic: c.topic, Name: "new", Spec: delayq.Every(time.Hour)}, {Topic: c.topic, Name: "s", Spec: delayq.Every(time.Minute)}}))
	}},
	{"Schedule", nil, func(c *caller) error {
		return c.Schedule(c.ctx, c.topic, "s", delayq.Every(time.Second/2), nil, delayq.DiscardEdits())
	}},
	{"EditSchedule", nil, func(c *caller) error {
		return c.EditSchedule(c.ctx, c.topic, "s", func(d *delayq.ScheduleDefinition) error {
			d.EditedBy, d.Payload, d.Spec = "me", []byte("new"), delayq.Every(time.Second/2)
			return nil
		})
	}},
	{"Unschedule", nil, func(c *caller) error { return c.Unschedule(c.ctx, c.topic, "s") }},
	{"Trigger", nil, func(c *caller) error { return just(c.Trigger(c.ctx, c.topic, "s")) }},
	{"Get", nil, get("scheduled")},
	{"Get", nil, get("running")},
	{"Get", nil, get("dead")},
	{"Get", nil, get("done")},
	{"Get", slip("leases"), func(c *caller) error { return ofType(just(c.Get(c.ctx, c.topic, "x"))) }},
	{"GetBatch", nil, func(c *caller) error {
		return just(c.GetBatch(c.ctx, []delayq.JobRef{{Topic: c.topic, ID: "scheduled"}}))
	}},
	{"Inspector.Job", nil, func(c *caller) error { return just(c.insp.Job(c.ctx, c.topic, "dead")) }},
	{"Inspector.Flow", nil, func(c *caller) error {
		return accept(just(c.insp.Flow(c.ctx, c.topic, "none")), delayq.ErrNotFound)
	}},
	{"Inspector.FlowFrom", nil, func(c *caller) error {
		return accept(just(c.insp.FlowFrom(c.ctx, c.topic, "none", 1)), delayq.ErrNotFound)
	}},
	{"Inspector.Schedule", nil, func(c *caller) error { return just(c.insp.Schedule(c.ctx, c.topic, "s")) }},
	{"Inspector.Runs", nil, func(c *caller) error { return just(c.insp.Runs(c.ctx, c.topic, "s", 10)) }},
	{"Inspector.Redis", nil, func(c *caller) error { return just(c.insp.Redis(c.ctx)) }},
	{"Run", workload, serves},
	{"Repair", nil, func(c *caller) error {
		report, err := c.Repair(c.ctx, c.topic)
		return errors.Join(err, finds(report, delayq.Finding{Key: "pool", ID: "nowhere", Kind: delayq.FindingNoPlace, Repaired: true}))
	}},
	{"Inspector.Check", nil, func(c *caller) error {
		report, err := c.insp.Check(c.ctx, c.topic)
		return errors.Join(err, finds(report, delayq.Finding{Key: "pool", ID: "nowhere", Kind: delayq.FindingNoPlace}))
	}},
	{"Inspector.Topics", nil, func(c *caller) error { return just(c.insp.Topics(c.ctx)) }},
	{"Inspector.Stats", nil, func(c *caller) error { return just(c.insp.Stats(c.ctx, c.topic)) }},
	{"Inspector.Stats", nil, func(c *caller) error { return just(c.insp.Stats(c.ctx)) }},
	{"Inspector.Stats", slip("bucket"), func(c *caller) error { return ofType(just(c.insp.Stats(c.ctx, c.topic))) }},
	{"Inspector.Undelivered", nil, func(c *caller) error { return just(c.insp.Undelivered(c.ctx, c.topic)) }},
	{"Inspector.Servers", nil, func(c *caller) error { return just(c.insp.Servers(c.ctx)) }},
	{"Inspector.Schedules", nil, func(c *caller) error { return just(c.insp.Schedules(c.ctx, c.topic)) }},
	{"Inspector.Forecast", nil, func(c *caller) error { return just(c.insp.Forecast(c.ctx, c.topic, time.Now(), time.Minute, 60)) }},
	{"Inspector.DueWithin", nil, func(c *caller) error {
		return just(c.insp.DueWithin(c.ctx, time.Now(), []time.Duration{time.Minute}, c.topic))
	}},
	{"Inspector.Find", nil, func(c *caller) error { return just(c.insp.Find(c.ctx, "dead")) }},
	{"Inspector.History", nil, history(time.Minute)},
	{"Inspector.History", nil, history(time.Hour)},
	{"Inspector.Audit", nil, func(c *caller) error { return just(c.insp.Audit(c.ctx, 10)) }},
	{"Inspector.Explain", nil, explain("ready")},
	{"Inspector.Explain", nil, explain("keyed")},
	{"Inspector.Explain", late, explain("due")},
	{"Inspector.Explain", nil, explain("done")},
	{"Inspector.Explain", nil, explain("none")},
	{"Inspector.Jobs", nil, func(c *caller) error {
		return just(c.insp.Jobs(c.ctx, delayq.Query{Topic: c.topic, State: delayq.StateReady}))
	}},
	{"Inspector.Jobs", nil, func(c *caller) error {
		return just(c.insp.Jobs(c.ctx, delayq.Query{Topic: c.topic, State: delayq.StateReady, Latest: true, Key: "key"}))
	}},
	{"Inspector.All", late, jobs(delayq.StateScheduled)},
	{"Inspector.All", nil, jobs(delayq.StateReady)},
	{"Inspector.All", nil, jobs(delayq.StateRunning)},
	{"Inspector.All", nil, jobs(delayq.StateDead)},
	{"Inspector.All", nil, jobs(delayq.StateDone)},
	{"Inspector.Count", nil, func(c *caller) error {
		_, _, err := c.insp.Count(c.ctx, delayq.Query{Topic: c.topic, State: delayq.StateReady})
		return err
	}},
	{"Inspector.Failures", nil, func(c *caller) error { return just(c.insp.Failures(c.ctx, c.topic, delayq.StateDead, 0)) }},
	{"Inspector.Keys", nil, func(c *caller) error { return just(c.insp.Keys(c.ctx, c.topic, "", 10)) }},
	{"Inspector.Key", nil, func(c *caller) error { return just(c.insp.Key(c.ctx, c.topic, "key")) }},
	{"Pause", nil, func(c *caller) error { return c.Pause(c.ctx, c.topic, delayq.Pause{}) }},
	{"Pause", nil, func(c *caller) error {
		return c.Pause(c.ctx, c.topic, delayq.Pause{By: "me", Reason: "because", For: time.Hour})
	}},
	{"Resume", nil, func(c *caller) error { return c.Resume(c.ctx, c.topic, "ops") }},
	{"ResumeAll", nil, func(c *caller) error { return c.ResumeAll(c.ctx, c.topic) }},
	{"ResumeAll", nil, func(c *caller) error {
		err := c.ResumeAll(delayq.WithActor(c.ctx, "me"), c.topic)
		acts, unread := c.insp.Audit(c.ctx, 10)
		if err == nil && unread == nil && acts[0].Actor != "me" {
			return fmt.Errorf("the audit says %+v", acts)
		}
		return errors.Join(err, unread)
	}},
	{"PauseSchedule", nil, func(c *caller) error { return c.PauseSchedule(c.ctx, c.topic, "s") }},
	{"ResumeSchedule", nil, func(c *caller) error { return c.ResumeSchedule(c.ctx, c.topic, "s") }},
	{"SetLimits", nil, func(c *caller) error { return c.SetLimits(c.ctx, c.topic, delayq.Limits{Running: 1000}) }},
	{"SetLimits", nil, func(c *caller) error {
		return c.SetLimits(c.ctx, c.topic, delayq.Limits{Running: 1000, Rate: delayq.Per(1000, time.Second), RunningPerKey: 1000})
	}},
	{"SetKeyLimits", nil, func(c *caller) error { return c.SetKeyLimits(c.ctx, c.topic, "key", delayq.KeyLimits{Weight: 2}) }},
	{"SetKeyLimits", nil, func(c *caller) error {
		return c.SetKeyLimits(c.ctx, c.topic, "key", delayq.KeyLimits{Running: 1000, Rate: delayq.Per(1000, time.Second)})
	}},
	{"Partition", unserved, func(c *caller) error {
		return errors.Join(just(c.hand.TryPartition("another", "0:1", "")), c.Partition(c.ctx, c.topic, 2))
	}},
	{"Partition", lostMap, func(c *caller) error {
		return errors.Join(just(c.hand.TryPartition("another", "0:1", "")), c.Partition(c.ctx, c.topic, 2))
	}},
	{"Hold", nil, func(c *caller) error { return c.Hold(c.ctx, c.topic, time.Millisecond, "why") }},
	{"EndHold", nil, func(c *caller) error { return c.EndHold(c.ctx, c.topic) }},
	{"HoldKey", nil, func(c *caller) error { return c.HoldKey(c.ctx, c.topic, "key", time.Millisecond) }},
	{"PauseKey", nil, func(c *caller) error { return c.PauseKey(c.ctx, c.topic, "key") }},
	{"ResumeKey", nil, func(c *caller) error { return c.ResumeKey(c.ctx, c.topic, "key") }},
	{"Revive", nil, func(c *caller) error { return c.Revive(c.ctx, c.topic, "dead") }},
	{"Delete", nil, func(c *caller) error { return c.Delete(c.ctx, c.topic, "done") }},
	{"Bury", nil, func(c *caller) error { return c.Bury(c.ctx, c.topic, "scheduled", "why") }},
	{"Bury", nil, func(c *caller) error { return c.Bury(c.ctx, c.topic, "ready", "why") }},
	{"RemoveTopic", nil, func(c *caller) error { return accept(c.RemoveTopic(c.ctx, c.topic), delayq.ErrNotEmpty) }},
	{"RemoveTopic", empty, func(c *caller) error { return c.RemoveTopic(c.ctx, c.topic) }},
	{"Apply", nil, apply(delayq.StateScheduled, delayq.Cancel())},
	{"Apply", nil, apply(delayq.StateScheduled, delayq.RunNow())},
	{"Apply", nil, apply(delayq.StateReady, delayq.Bury("why"))},
	{"Apply", nil, apply(delayq.StateDead, delayq.Revive(), delayq.Spread(time.Second/2))},
	{"Apply", nil, apply(delayq.StateDone, delayq.Delete())},
}

// emptyFlow makes a flow without steps.
func emptyFlow(c *caller) *delayq.Flow {
	return delayq.NewFlow(c.topic, "flow", nil).Deadline(time.Hour)
}

func startFlow(c *caller) error {
	f := emptyFlow(c)
	f.AddJob(c.topic, "later", nil, delayq.Key("key")).After(f.AddJob(c.topic, "first", nil))
	return just(c.Start(c.ctx, f))
}

func openGroup(c *caller) (*delayq.Group, error) { return c.OpenGroup(c.ctx, emptyFlow(c)) }

func replace(id string, opts ...delayq.JobOption) func(c *caller) error {
	return func(c *caller) error {
		return just(c.Enqueue(c.ctx, c.topic, id, nil, append(opts, delayq.Replace())...))
	}
}

func cancel(id string, opts ...delayq.DequeueOption) func(c *caller) error {
	return func(c *caller) error { return just(c.Dequeue(c.ctx, c.topic, id, opts...)) }
}

func get(id string) func(c *caller) error {
	return func(c *caller) error { return just(c.Get(c.ctx, c.topic, id)) }
}

func explain(id string) func(c *caller) error {
	return func(c *caller) error { return just(c.insp.Explain(c.ctx, c.topic, id)) }
}

func history(step time.Duration) func(c *caller) error {
	return func(c *caller) error {
		return just(c.insp.History(c.ctx, c.topic, time.Now().Add(-time.Hour), time.Now(), step))
	}
}

func apply(state delayq.State, act delayq.Action, opts ...delayq.ApplyOption) func(c *caller) error {
	return func(c *caller) error {
		return just(c.Apply(c.ctx, delayq.Query{Topic: c.topic, State: state}, act, opts...))
	}
}

// jobs reads pages of jobs. The second one begins at the place where the first one ends.
func jobs(state delayq.State) func(c *caller) error {
	return func(c *caller) error {
		for _, err := range c.insp.All(c.ctx, delayq.Query{Topic: c.topic, State: state, Limit: 1}) {
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// ofType is nil for an error that names a key and its types.
func ofType(err error) error {
	if err != nil && strings.Contains(err.Error(), "is a string and not a zset") {
		return nil
	}
	return fmt.Errorf("no error about a key that is a string: %v", err)
}

// finds is nil for a report with one finding about a job.
func finds(report *delayq.CheckReport, want delayq.Finding) error {
	if report == nil || len(report.Findings) != 1 || report.Findings[0] != want {
		return fmt.Errorf("found: %+v", report)
	}
	return nil
}

// chores are calls of scripts, and commands, that a server makes. Run of deeds makes some of them
// too; others it would make only after minutes, or after a failure.
var chores = []deed{
	{"Run", unpaused, settles(settle.Row{Verb: settle.Ack})},
	{"Run", unpaused, settles(settle.Row{Verb: settle.Expire})},
	{"Run", unpaused, settles(settle.Row{Verb: settle.Return})},
	{"Run", unpaused, settles(settle.Row{Verb: settle.Hold, Delay: time.Hour, Err: errTest})},
	{"Run", unpaused, settles(settle.Row{Verb: settle.Snooze})},
	{"Run", unpaused, settles(settle.Row{Verb: settle.Retry, Failure: hand.Failed})},
	{"Run", unpaused, settles(settle.Row{Verb: settle.Bury, Failure: hand.Failed})},
	{"Run", unpaused, settles(settle.Row{Verb: settle.Again})},
	{"Run", unpaused, settles(settle.Row{Verb: settle.Again, Delay: time.Second / 2})},
	{"Run", unpaused, func(c *caller) error { // a server that died after a take, and one between a wait and a take
		err := just(c.hand.TryTake("", 1, 0))
		moved := c.hand.RDB.BLMove(c.ctx, c.hand.Keys.Ready, c.hand.Keys.Handoff, "LEFT", "RIGHT", time.Second).Err()
		return errors.Join(err, moved, just(c.hand.TryPromote(1000, 1)), just(c.hand.TryTake("", 10, time.Hour)))
	}},
	{"Run", unpaused, func(c *caller) error { // as if the answer had been lost
		return errors.Join(just(c.hand.TryTake("9", 1, time.Hour)), just(c.hand.TryTake("9", 1, time.Hour)))
	}},
	{"Run", unpaused, func(c *caller) error {
		r, err := c.hand.TryTake("", 1, time.Hour)
		for _, one := range hand.HeldOf(r) {
			err = errors.Join(err, just(c.hand.TryExtend(one.LeaseEnd()+1000, one)))
		}
		return err
	}},
	{"Run", unpaused, func(c *caller) error { // a handler with steps, of a job that somebody waits for
		r, err := c.hand.TryTake("", 1, time.Hour)
		for _, one := range hand.HeldOf(r) {
			err = errors.Join(err, just(c.hand.TryWait("me", [3]string{one.ID, "", hand.Register})),
				just(c.hand.TryNote(one, hand.Note{Progress: "1 2 0 0 half"}, hand.Note{Step: "step", Result: "saved"})),
				just(c.hand.TryRecall(one, 1000)), just(c.hand.Settle([]hand.Held{one}, settle.Row{Verb: settle.Ack})))
		}
		return errors.Join(err, just(c.hand.TryPrune(0, time.Hour, 10)))
	}},
	{"Run", unpaused, relaysFlows},
	{"Run", nil, tendsParts},
	{"Run", unpaused, handsOver(settle.Ack)},
	{"Run", unpaused, handsOver(settle.Again)},
	{"Run", unpaused, fireSome},
	{"Run", nil, func(c *caller) error { return just(c.hand.TryPrune(0, time.Hour, 10)) }},
	{"Run", nil, func(c *caller) error { return just(c.hand.marks(script.Survey, true, c.hand.Keys)) }},
	{"Run", nil, func(c *caller) error { return just(c.hand.marks(script.Watch, true, c.hand.Keys)) }},
	{"Run", nil, func(c *caller) error {
		keys := c.hand.Keys.Of(script.Ring, "")
		return just(c.hand.Try(script.Ring, keys, script.ControlChannel(c.hand.Prefix()), c.topic, "another", 1))
	}},
	{"Run", nil, func(c *caller) error {
		return just(c.hand.Try(script.Unpark, c.hand.Keys.Of(script.Unpark, ""), script.ControlChannel(c.hand.Prefix()), c.topic, 10))
	}},
	{"Run", nil, func(c *caller) error {
		return just(c.hand.Try(script.Chronicle, c.hand.Keys.Of(script.Chronicle, c.hand.Keys.Receipt("history")), "1", "acked 1"))
	}},
	{"Run", nil, func(c *caller) error { // with patterns; and about servers that are gone
		topics, servers := script.TopicsKey(c.hand.Prefix()), script.ServersKey(c.hand.Prefix())
		return errors.Join(c.hand.RDB.SCard(c.ctx, topics).Err(), c.hand.RDB.SScan(c.ctx, topics, 0, "", 1000).Err(),
			c.hand.RDB.HScan(c.ctx, servers, 0, "", 100).Err(), c.hand.RDB.HDel(c.ctx, servers, "nobody").Err(), c.hand.RDB.Info(c.ctx).Err())
	}},
	{"Run", nil, func(c *caller) error { // after half a minute without a message
		sub := c.hand.RDB.Subscribe(c.ctx, script.ControlChannel(c.hand.Prefix()))
		defer func() { _ = sub.Close() }()
		return errors.Join(just(sub.Receive(c.ctx)), sub.Ping(c.ctx), just(sub.Receive(c.ctx)), c.hand.RDB.Ping(c.ctx).Err())
	}},
}

// lostMap divides a topic, and loses its map.
func lostMap(admin *Hand) {
	unserved(admin)
	c := delayq.NewClient(admin.RDB, delayq.Prefix(admin.Prefix()))
	require.NoError(admin.T, c.Partition(admin.T.Context(), admin.Keys.Topic, 1))
	require.NoError(admin.T, admin.RDB.Del(admin.T.Context(), admin.Keys.Parts).Err())
}

// tendsParts looks after the places of a topic.
func tendsParts(c *caller) error {
	err := errors.Join(just(c.hand.TryMap()), just(c.hand.TryClose()), just(c.hand.TryEmpty()))
	for _, known := range []string{"0:1 1:2", "0:1 1:2", "0:1 1:2", "1:2"} { // it restores the map first
		err = errors.Join(err, just(c.hand.TryRetire(known, 0, true, 0)))
	}
	gone := NewHand(c.hand.T, c.hand.RDB, c.hand.Prefix(), "gone#1.0.a")
	err = errors.Join(err, just(gone.TrySeal("seal")), just(gone.TryEmpty()))
	err = errors.Join(err, just(gone.TryDivide("", "", "3 0 0 0 0 0", "9 0 0 0 0 0")))
	for range 3 {
		err = errors.Join(err, just(c.hand.TryLeave("1:2 2:3", 1, true, 0, "seal", "acked 1")))
	}
	err = errors.Join(err, leavesByKey(c, NewHand(c.hand.T, c.hand.RDB, c.hand.Prefix(), "keys#1.0.a")))
	for _, key := range []string{gone.Keys.Stats, gone.Keys.Undelivered, gone.Keys.Meta, gone.Keys.Sizes} {
		err = errors.Join(err, c.hand.RDB.PExpire(c.ctx, key, time.Hour).Err())
	}
	return err
}

// leavesByKey closes a place by key, ends its job, and looks which keys stay.
func leavesByKey(c *caller, h *Hand) error {
	err := errors.Join(just(h.tryKeyed("keyed", "+0")), just(h.Run(script.PartClose, h.Series.Next(), "", 1)))
	look := func() {
		for range 20 {
			err = errors.Join(err, just(h.TryKeys(1)))
		}
	}
	look()
	r, failed := h.TryTake("", 1, time.Hour)
	err = errors.Join(err, failed)
	for _, one := range hand.HeldOf(r) {
		err = errors.Join(err, just(h.Settle([]hand.Held{one}, settle.Row{Verb: settle.Ack})))
	}
	look()
	return err
}

// handsOver takes a job, and ends its run, which hands jobs over. Then it delivers them, as a
// server does, with the scripts that store jobs.
func handsOver(verb settle.Verb) func(c *caller) error {
	return func(c *caller) error {
		r, err := c.hand.TryTake("", 1, time.Hour)
		for _, one := range hand.HeldOf(r) {
			row := settle.Row{Verb: verb, Parcels: c.hand.Parcels(c.topic, "handed")}
			err = errors.Join(err, just(c.hand.Settle([]hand.Held{one}, row)))
		}
		plan, planned := c.hand.TryPlan(c.topic, "tag", "", 0)
		return errors.Join(err, planned, just(c.hand.TryEnqueue(true, [2]string{"handed", "+0"}, [2]string{"later", "+50000"})),
			just(c.hand.TryEnqueue(false, [2]string{"fresh", "+0!1000/100"})), just(c.hand.TryDone(c.topic, plan, "{}")),
			c.hand.RDB.SAdd(c.ctx, script.TopicsKey(c.hand.Prefix()), c.topic).Err())
	}
}

// settles takes a job and ends its run.
func settles(like settle.Row) func(c *caller) error {
	return func(c *caller) error {
		r, err := c.hand.TryTake("", 1, time.Hour)
		if err != nil {
			return err
		}
		return just(c.hand.Settle(hand.HeldOf(r), like))
	}
}

// fireSome fires some slots of a schedule, the second while the job of the first one runs, the
// others while the last job is ready: those are cancelled.
func fireSome(c *caller) error {
	timer := hand.NewTimer(c.hand.RDB, c.hand.Keys, slog.New(slog.DiscardHandler))
	err := c.Schedule(c.ctx, c.topic, "s", delayq.Every(time.Millisecond), nil, delayq.OverlapCancelPrevious)
	for cancelled, try := 0, 0; err == nil && cancelled < 3 && try < 500; try++ { // the slots come by themselves
		timer.Firer.Idle = 0 // look again, though nothing is new
		timer.Firer.Fire(c.ctx, 1, 0)
		if cancelled, _ = c.hand.RDB.HGet(c.ctx, c.hand.Keys.Stats, "cancelled").Int(); cancelled == 0 {
			err = just(c.hand.TryTake("", 10, time.Hour))
		}
	}
	return err
}

// stageFor makes a stage: a queuetest.ACLStage, with a job that has a key, a hold of that key that
// is over, a list that takes turns with keys, and a server to be rung.
func stageFor(t *testing.T, admin redis.UniversalClient, prefix, topic string, more func(admin *Hand)) *Hand {
	t.Helper()
	h := &Hand{queuetest.ACLStage(t, admin, prefix, topic)}
	h.layReady("key", "keyed")
	for key, member := range map[string]string{h.Keys.Held: "key", h.Keys.Turn: "", h.Keys.Idle: "nobody"} {
		require.NoError(t, admin.ZAdd(t.Context(), key, redis.Z{Score: 1, Member: member}).Err())
	}
	if more != nil {
		more(h)
	}
	return h
}

// bar makes a key with Ordered limits wait for its first job, as after a failure of that.
func bar(h *Hand) {
	ctx := h.T.Context()
	for _, id := range []string{"first", "second"} {
		require.NoError(h.T, just(h.client().Enqueue(ctx, h.Keys.Topic, id, nil, delayq.Key("ordered"))))
	}
	const later = 9e12
	require.NoError(h.T, h.RDB.ZAdd(ctx, h.Keys.Blockers, redis.Z{Score: later, Member: h.RDB.HGet(ctx, h.Keys.Keyed, "first").Val() + "first"}).Err())
	require.NoError(h.T, h.RDB.ZAdd(ctx, h.Keys.Parked, redis.Z{Score: later, Member: "ordered"}).Err())
}

// followedOne gives the running job a successor.
func followedOne(h *Hand) { h.follow("running") }

// merge enqueues a job with Debounce.
func merge(id string) func(c *caller) error {
	return func(c *caller) error {
		return just(c.Enqueue(c.ctx, c.topic, id, nil, delayq.Debounce(time.Second, time.Minute)))
	}
}

// closed closes an ID, and another one that is free again.
func closed(h *Hand) {
	h.entomb("closed")
	require.NoError(h.T, h.RDB.ZAdd(h.T.Context(), h.Keys.Tombs, redis.Z{Score: 1, Member: "free"}).Err())
}

// unserved lets the topic have no servers.
func unserved(h *Hand) {
	require.NoError(h.T, h.RDB.Del(h.T.Context(), script.ServersKey(h.Prefix())).Err())
}

// late puts two more jobs into bucket, one of them due.
func late(h *Hand) {
	h.Put("+3600000", "due", "later")
	require.NoError(h.T, h.RDB.ZIncrBy(h.T.Context(), h.Keys.Bucket, -7_200_000, "due").Err())
}

// slip puts a key of a wrong type in the place of one of the topic's.
func slip(key string) func(h *Hand) { return func(h *Hand) { h.Deface(key) } }

// unpaused ends the pauses, so that jobs are taken.
func unpaused(h *Hand) { require.NoError(h.T, h.client().ResumeAll(h.T.Context(), h.Keys.Topic)) }

// empty leaves nothing of a topic but its name.
func empty(h *Hand) {
	keys, err := redistest.Census(h.T.Context(), h.RDB, h.Keys.Root+"*")
	require.NoError(h.T, err)
	for key := range keys {
		require.NoError(h.T, h.RDB.Del(h.T.Context(), key).Err())
	}
}

// workload enqueues jobs for serves.
func workload(h *Hand) {
	unpaused(h)
	for _, id := range []string{"retry", "snooze", "again", "cut", "bury", "long"} {
		var opts []delayq.JobOption
		if id == "bury" {
			opts = append(opts, delayq.Retry(0))
		}
		require.NoError(h.T, just(h.client().Enqueue(h.T.Context(), h.Keys.Topic, id, nil, append(opts, delayq.Backoff(time.Millisecond, time.Second))...)))
	}
	require.NoError(h.T, h.client().Schedule(h.T.Context(), h.Keys.Topic, "tick", delayq.Every(20*time.Millisecond), nil))
}

// serves runs a server until it has done all that a server does with jobs, or has been refused a
// take.
func serves(c *caller) error {
	log := &serverLog{happened: map[string]bool{}, changed: make(chan struct{})}
	server := delayq.NewServer(c.hand.RDB, delayq.Prefix(c.hand.Prefix()), delayq.Logger(slog.New(slog.DiscardHandler)), delayq.Hooks(log),
		delayq.Tick(10*time.Millisecond), delayq.Lease(2*time.Second), delayq.Drain(0), delayq.Concurrency(20))
	server.HandlerFunc("elsewhere.*", func(context.Context, *delayq.Job) error { return nil }) // reads the topics
	server.HandlerFunc(c.topic, func(ctx context.Context, job *delayq.Job) error {
		switch { // by what has happened: on a machine that stands still, a lease may be lost
		case job.ID == "retry" && !log.has("retried retry"), job.ID == "bury":
			return errTest
		case job.ID == "snooze" && !log.has("snoozed snooze"):
			return delayq.Snooze(time.Millisecond)
		case job.ID == "again" && !log.has("again again"):
			return delayq.Again(nil, delayq.ProcessIn(time.Millisecond))
		case job.ID == "long": // until it is cancelled
			if err := log.await(ctx, "script extend"); err != nil {
				return err
			}
			if err := just(c.Dequeue(ctx, c.topic, job.ID)); err != nil {
				return err
			}
			<-ctx.Done()
			log.note("cancelled long", nil)
			return ctx.Err()
		case job.ID == "cut": // until the server ends
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}, delayq.DefaultLimits(delayq.Limits{Running: 1000}))
	ctx, stop := context.WithCancel(c.ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	err := log.await(c.ctx, "acked ready", "acked keyed", "acked retry", "acked snooze", "acked again", "buried bury",
		"acked schedule tick", "cancelled long", "started cut", "script heartbeat")
	stop()
	return errors.Join(err, <-ended)
}

// A serverLog is a hook that remembers what has happened.
type serverLog struct {
	mu       sync.Mutex
	happened map[string]bool
	changed  chan struct{} // closed when more has happened
	refused  error
}

func (l *serverLog) note(what string, refused error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.happened[what] = true
	if l.refused == nil {
		l.refused = refused
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *serverLog) has(what string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.happened[what]
}

// await waits until all of these have happened, or a script has been refused.
func (l *serverLog) await(ctx context.Context, all ...string) error {
	for _, what := range all {
		for {
			l.mu.Lock()
			happened, refused, changed := l.happened[what], l.refused, l.changed
			l.mu.Unlock()
			if refused != nil {
				return refused
			}
			if happened {
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return fmt.Errorf("%q has not happened: %w", what, ctx.Err())
			}
		}
	}
	return nil
}

func (l *serverLog) run(e delayq.RunEvent) {
	l.note(string(e.Outcome)+" "+e.ID, nil)
	if s, ok := record.DecodeSlotID(e.ID); ok {
		l.note(string(e.Outcome)+" schedule "+s.Schedule, nil)
	}
}

func (l *serverLog) Started(e delayq.RunEvent) { l.note("started "+e.ID, nil) }
func (l *serverLog) Done(e delayq.RunEvent)    { l.run(e) }
func (l *serverLog) Again(e delayq.RunEvent)   { l.run(e) }
func (l *serverLog) Retried(e delayq.RunEvent) { l.run(e) }
func (l *serverLog) Snoozed(e delayq.RunEvent) { l.run(e) }
func (l *serverLog) Buried(e delayq.RunEvent)  { l.run(e) }

func (l *serverLog) Script(e delayq.ScriptEvent) {
	switch {
	case e.Err == nil:
		l.note("script "+e.Name, nil)
	case e.Name == "take" && strings.Contains(e.Err.Error(), "NOPERM"):
		l.note("refused", e.Err)
	}
}

// callCancelled cancels a job that a client waits for. When the client knows that, it has tried to
// subscribe.
func callCancelled(c *caller) error {
	ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- just(c.Call(ctx, c.topic, "called", nil, delayq.ProcessIn(time.Hour))) }()
	for {
		select {
		case err := <-ended:
			return accept(err, delayq.ErrCancelled)
		default:
			switch err := just(c.Dequeue(ctx, c.topic, "called")); {
			case err == nil: // the client can look a second later, which is no reason to ask again
				return accept(<-ended, delayq.ErrCancelled)
			case !errors.Is(err, delayq.ErrNotFound):
				cancel()
				return errors.Join(err, <-ended)
			}
		}
	}
}

// relaysFlows makes the calls about flows: of who starts them, of relays, and of those who look
// after them.
func relaysFlows(c *caller) error {
	h := c.hand.Hand
	f := &hand.Flow{ID: "last", Name: "12345678", Flags: "-", Deadline: "+3600000", Steps: []hand.FlowStep{
		{Topic: c.topic, ID: "first"}, {Topic: c.topic, ID: "second", After: []int{0}}, {Topic: c.topic, ID: "beside"},
	}}
	group := &hand.Flow{ID: "group", Name: "87654321", Flags: "g", Deadline: "+3600000"}
	_, err := h.TryStart(f)
	_, groupErr := h.TryStart(group)
	err = errors.Join(err, groupErr, just(h.TryAdd(group, true, hand.FlowStep{Topic: c.topic, ID: "third"})))
	for range 4 {
		plan, planErr := h.TryPlan(c.topic, "tag", "", 0)
		if err = errors.Join(err, planErr); err != nil {
			return err
		}
		r, takeErr := h.TryTake("", 10, time.Hour)
		err = errors.Join(err, h.Deliver(h, plan).All(), takeErr)
		for _, one := range hand.HeldOf(r) {
			if one.ID != "second" {
				err = errors.Join(err, just(h.Settle([]hand.Held{one}, settle.Row{Verb: settle.Ack})))
			}
		}
	}
	h.Guard(map[string]*hand.Hand{c.topic: h})
	_, _, beginErr := h.TryBegin("last", f.Name)
	return errors.Join(err, beginErr, just(h.TryCancelSteps(h.Series.Next(), h.Keys.Receipt("steps"), [2]string{"second", f.Name + "00000001"})),
		just(h.Run(script.FlowRead, "last", 0, 10)), just(h.Run(script.FlowInputs, "last", f.Name, -1, 0)), just(h.TrySweep("last", f.Name, "e", 0)),
		just(h.Run(script.FlowLost, c.topic, "second", f.Name+"00000001")))
}
