package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// A flowRun notes which steps run, in their order, and what they find as inputs.
type flowRun struct {
	mu     sync.Mutex
	ran    []string
	inputs map[string][]string
}

// handle is the handler of all topics: a payload that is no "fail" becomes the output.
func (r *flowRun) handle(ctx context.Context, job *delayq.Job) error {
	ins, err := job.Inputs(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ran = append(r.ran, job.ID)
	for _, in := range ins {
		if r.inputs == nil {
			r.inputs = map[string][]string{}
		}
		r.inputs[job.ID] = append(r.inputs[job.ID], fmt.Sprintf("%s %s %s%s", in.ID, in.State, in.Output, in.Error))
	}
	if string(job.Payload) == "fail" {
		return delayq.Permanent(queuetest.ErrTest)
	}
	return job.SetOutput(job.Payload)
}

func (r *flowRun) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.ran...)
}

// serve handles topics with one worker each.
func (r *flowRun) serve(b *queuetest.Bubble, topics ...string) {
	queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
		for _, topic := range topics {
			require.NoError(b, s.HandlerFunc(topic, r.handle, delayq.Concurrency(1)))
		}
	})
}

// A diamond over three topics runs in its order, and each step sees the outputs of those before it.
func TestFlowRunsInItsOrder(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r flowRun
		r.serve(b, "a", "b", "home")
		f := delayq.NewFlow("home", "last", []byte("z")).Deadline(time.Hour)
		first := f.AddJob("a", "first", []byte("1"))
		left := f.AddJob("b", "left", []byte("2")).After(first)
		right := f.AddJob("a", "right", []byte("3"), delayq.ProcessIn(time.Minute)).After(first)
		f.AddJob("b", "join", []byte("4")).After(left, right, left)
		job, err := b.Client.Start(b.Context(), f)
		require.NoError(b, err)
		require.Equal(b, delayq.JobRef{Topic: "home", ID: "last"}, job.Flow)
		require.True(b, job.Due.Equal(b.Began.Add(time.Hour)), job.Due)
		synctest.Wait()
		require.Equal(b, []string{"first", "left"}, r.all())
		b.Pass(2 * time.Minute)
		require.Equal(b, []string{"first", "left", "right", "join", "last"}, r.all())
		require.Equal(b, map[string][]string{
			"left": {"first done 1"}, "right": {"first done 1"}, "join": {"left done 2", "right done 3"},
			"last": {"first done 1", "left done 2", "right done 3", "join done 4"},
		}, r.inputs)
	})
}

// What cannot be a flow is refused with what is wrong and where, and nothing is written.
func TestFlowsThatAreRefused(t *testing.T) {
	opts := func(f func(f *delayq.Flow)) func(*delayq.Flow) { return f }
	other := delayq.NewFlow("topic", "other", nil).Add("a", nil)
	type unencodable struct{ F func() }
	bad := delayq.NewTopic[unencodable]("bad", delayq.JSON)
	last := func(opts ...delayq.JobOption) func(*delayq.Flow) {
		return func(f *delayq.Flow) {
			*f = *delayq.NewFlow("topic", "last", nil, opts...).Deadline(time.Hour)
			f.Add("a", nil)
		}
	}
	step := func(opts ...delayq.JobOption) func(*delayq.Flow) {
		return func(f *delayq.Flow) { f.AddJob("a", "1", nil, opts...) }
	}
	const first = `step 0, topic "a" job "1": `
	cases := map[string]struct {
		build func(f *delayq.Flow)
		want  []string
	}{
		"no steps":            {func(*delayq.Flow) {}, []string{"no steps"}},
		"a circle":            {opts(func(f *delayq.Flow) { a := f.AddJob("a", "1", nil); a.After(f.AddJob("a", "2", nil).After(a)) }), []string{"steps wait for each other", `topic "a" job "2"`}},
		"itself":              {opts(func(f *delayq.Flow) { a := f.AddJob("a", "1", nil); a.After(a) }), []string{"steps wait for each other"}},
		"another flow's step": {opts(func(f *delayq.Flow) { f.Add("a", nil).After(other) }), []string{"step 0: After: argument 0", "is a step of another flow"}},
		"a nil step":          {opts(func(f *delayq.Flow) { f.Add("a", nil).After(nil) }), []string{"step 0: After: argument 0 is nil"}},
		"twice":               {opts(func(f *delayq.Flow) { f.AddJob("a", "1", nil); f.AddJob("a", "1", nil) }), []string{`step 1, topic "a" job "1", is in the flow already`}},
		"the last step":       {opts(func(f *delayq.Flow) { f.AddJob("topic", "last", nil) }), []string{"is the last step itself"}},
		"an empty ID":         {opts(func(f *delayq.Flow) { f.AddJob("a", "", nil) }), []string{`step 0, topic "a"`, "empty ID"}},
		"a topic":             {opts(func(f *delayq.Flow) { f.AddJob("a{", "1", nil) }), []string{`step 0, topic "a{" job "1": `}},
		"a payload":           {opts(func(f *delayq.Flow) { f.AddJob("a", "1", make([]byte, 2<<20)) }), []string{first, "payload of 2097152 bytes"}},
		"many bytes": {opts(func(f *delayq.Flow) {
			for range 5 {
				f.Add("a", make([]byte, 1<<20))
			}
		}), []string{"at most 4194304 are allowed"}},
		"many steps": {opts(func(f *delayq.Flow) {
			for range 1001 {
				f.Add("a", nil)
			}
		}), []string{"1001 steps, at most 1000 are allowed"}},
		"many faults": {opts(func(f *delayq.Flow) {
			for range 15 {
				f.AddJob("a", "", nil)
			}
		}), []string{"and 5 more errors"}},
		"a value": {opts(func(f *delayq.Flow) { bad.Add(f, unencodable{}); bad.AddJob(f, "x", unencodable{}) }), []string{"step 0: ", "step 1: ", "encode"}},

		"a short deadline": {opts(func(f *delayq.Flow) { f.Deadline(time.Millisecond).Add("a", nil) }), []string{"Deadline(1ms): must be from 1s to 876000h0m0s"}},
		"no deadline": {opts(func(f *delayq.Flow) { *f = *delayq.NewFlow("topic", "last", nil); f.AddJob("a", "1", nil) }),
			[]string{first, "Retry: the retries are unlimited, and the flow has no Deadline"}},
		"unlimited": {opts(func(f *delayq.Flow) {
			*f = *delayq.NewFlow("topic", "last", nil)
			f.AddJob("a", "0", nil, delayq.Retry(3))
			f.AddJob("a", "1", nil, delayq.Retry(delayq.Unlimited))
		}), []string{`step 1, topic "a" job "1": `, "no Deadline"}},

		"a step with IfUnchanged":   {step(delayq.ReplaceDead(), delayq.IfUnchanged(&delayq.JobInfo{Job: delayq.Job{Topic: "a", ID: "1"}, State: delayq.StateDead})), []string{first, "IfUnchanged"}},
		"a step with ProcessAtEach": {step(delayq.ProcessAtEach(time.Now().Add(time.Hour))), []string{first, "ProcessAtEach: a step of a flow has one due time"}},
		"a step with Latest":        {step(delayq.Latest()), []string{first, "Latest: a step of a flow is a job of its own"}},
		"a step with Debounce":      {step(delayq.Debounce(time.Second, time.Minute)), []string{first, "Debounce: a step of a flow"}},
		"a step after the deadline": {step(delayq.ProcessIn(time.Hour)), []string{first, "ProcessIn: 1h0m0s is not before the Deadline of the flow, 1h0m0s"}},
		"a step with a bad option":  {step(delayq.Retry(-7), delayq.Timeout(1)), []string{first, "Retry(-7)", "Timeout(1ns)"}},

		"the last with ProcessIn":     {last(delayq.ProcessIn(1)), []string{"ProcessIn"}},
		"the last with ProcessIn 0":   {last(delayq.ProcessIn(0)), []string{"ProcessAt or ProcessIn: the last step is due when the other steps have ended"}},
		"the last with ProcessAt":     {last(delayq.ProcessAt(time.Now())), []string{"ProcessAt or ProcessIn"}},
		"the last with ProcessAtEach": {last(delayq.ProcessAtEach(time.Now())), []string{"ProcessAtEach"}},
		"the last with ExpireIn":      {last(delayq.ExpireIn(9 * time.Hour)), []string{"ExpireAt or ExpireIn: the last step must not expire"}},
		"the last with ExpireAt":      {last(delayq.ExpireAt(time.Now().Add(9 * time.Hour))), []string{"ExpireAt or ExpireIn"}},
		"the last with Replace":       {last(delayq.Replace()), []string{"Replace: the last step can have ReplaceDead only"}},
		"the last, unless it runs":    {last(delayq.Replace(), delayq.UnlessRunning()), []string{"Replace: the last step"}},
		"the last with Latest":        {last(delayq.Latest()), []string{"Latest: a step of a flow"}},
		"the last with Debounce":      {last(delayq.Debounce(time.Second, time.Minute)), []string{"Debounce: a step of a flow"}},
		"the last with UniqueFor":     {last(delayq.UniqueFor(time.Hour)), []string{"UniqueFor: the last step"}},
	}
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		before := f.Dump()
		for name, c := range cases {
			flow := delayq.NewFlow("topic", "last", nil).Deadline(time.Hour)
			c.build(flow)
			job, err := f.Client.Start(t.Context(), flow)
			require.ErrorIs(t, err, delayq.ErrInvalid, name)
			require.Nil(t, job, name)
			require.ErrorContains(t, err, `start flow topic "topic" job "last": `, name)
			for _, part := range c.want {
				require.ErrorContains(t, err, part, name)
			}
		}
		for _, flow := range []*delayq.Flow{nil, {}} {
			flow.Add("a", nil).After(flow.Add("b", nil)).IgnoreFailures()
			flow.Deadline(time.Hour).IgnoreFailures()
			_, err := f.Client.Start(t.Context(), flow)
			require.ErrorIs(t, err, delayq.ErrInvalid)
		}
		require.Equal(t, before, f.Dump())
	})
}

// A flow that was started is started once, however often Start is called with it. Another one with
// its ID is a duplicate. A flow cannot be changed any more.
func TestFlowStartsOnce(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		make := func() *delayq.Flow {
			flow := delayq.NewFlow("topic", "last", []byte("x"), delayq.Retry(1), delayq.Header("h", "v")).Deadline(time.Hour)
			flow.Add("topic", nil)
			return flow
		}
		flow := make()
		first, err := f.Client.Start(t.Context(), flow)
		require.NoError(t, err)
		before := f.Dump()
		second, err := f.Client.Start(t.Context(), flow)
		require.NoError(t, err)
		require.Equal(t, first, second)
		require.Equal(t, before, f.Dump())

		_, err = f.Client.Start(t.Context(), make())
		require.ErrorIs(t, err, delayq.ErrDuplicate)
		_, err = f.Client.Enqueue(t.Context(), "topic", "last", nil)
		require.ErrorIs(t, err, delayq.ErrDuplicate)
		require.Equal(t, before, f.Dump())

		flow.Add("topic", nil)
		_, err = f.Client.Start(t.Context(), flow)
		require.ErrorIs(t, err, delayq.ErrInvalid)
		require.ErrorContains(t, err, "Add: the flow was started already; make another with NewFlow")
		require.Equal(t, before, f.Dump())
		info := f.Get("last")
		require.Equal(t, delayq.StateScheduled, info.State)
		require.Equal(t, delayq.JobRef{Topic: "topic", ID: "last"}, info.Flow)
		require.Equal(t, "v", info.Headers["h"])

		require.Equal(t, delayq.StateScheduled, f.Dequeue("last"))
		_, err = f.Client.Start(t.Context(), make())
		require.NoError(t, err, "the ID is free")
	})
}

// Defaults of a client apply to all steps. Those that a last step must not have are left out.
func TestFlowsHaveTheDefaultsOfTheClient(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		client := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Defaults(delayq.Retry(7), delayq.ExpireIn(time.Minute)))
		flow := delayq.NewFlow("topic", "", nil)
		step := flow.Add("topic", nil)
		require.Regexp(t, `^\w{14}/0~[0-9a-f]{8}$`, step.Job().ID)
		require.Equal(t, delayq.JobRef{Topic: "topic", ID: step.Job().ID[:14]}, flow.Job())
		job, err := client.Start(t.Context(), flow)
		require.NoError(t, err, "retries are limited, so there need be no deadline")
		info := f.Get(job.ID)
		require.Equal(t, 7, info.Retries)
		require.Zero(t, info.ExpireAt)
		require.Equal(t, 30*24*time.Hour, info.Due.Sub(info.EnqueuedAt))
	})
}

// Steps have their own options, and the values of typed topics. A hook sees all of them.
func TestFlowStepsHaveTheirOptions(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r flowRun
		r.serve(b, "home")
		var seen []string
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(flowHook(func(job *delayq.NewJob) {
			seen = append(seen, job.Topic+"/"+job.ID)
			job.Options = append(job.Options, delayq.Header("traced", "yes"))
		})))
		home, step := delayq.NewTopic[int]("home", delayq.JSON), delayq.NewTopic[string]("step", delayq.JSON, delayq.Defaults(delayq.Timeout(time.Minute)))
		f := home.NewFlow("last", 7, delayq.Key("k")).Deadline(time.Hour)
		step.AddJob(f, "1", "x", delayq.Key("tenant"), delayq.Priority(time.Minute), delayq.Retry(3), delayq.Backoff(time.Second, time.Minute),
			delayq.Header("h", "v"), delayq.Retention(time.Hour), delayq.ExpireIn(30*time.Minute), delayq.ProcessIn(10*time.Minute))
		generated := step.Add(f, "y")
		_, err := client.Start(b.Context(), f)
		require.NoError(b, err)
		require.Equal(b, []string{"home/last", "step/1", "step/" + generated.Job().ID}, seen)
		b.Pass(time.Second)
		info := b.Get("step", "1")
		require.Equal(b, `"x"`, string(info.Payload))
		require.Equal(b, map[string]string{"h": "v", "traced": "yes"}, info.Headers)
		require.Equal(b, []any{"tenant", time.Minute, 3, time.Second, time.Minute, time.Minute, time.Hour},
			[]any{info.Key, info.Priority, info.Retries, info.BackoffFirst, info.BackoffLimit, info.Timeout, info.Retention})
		require.True(b, info.Due.Equal(b.Began.Add(10*time.Minute)), info.Due)
		require.True(b, info.ExpireAt.Equal(b.Began.Add(30*time.Minute)), info.ExpireAt)
		require.Equal(b, delayq.StateReady, b.State("step", generated.Job().ID))
		last := b.Get("home", "last")
		require.Equal(b, []any{"7", "k", delayq.Unlimited}, []any{string(last.Payload), last.Key, last.Retries})
		require.Equal(b, "yes", last.Headers["traced"])
		_, err = b.Client.Enqueue(b.Context(), "step", "copy", info.Payload, info.Options()...)
		require.NoError(b, err)
		require.Zero(b, b.Get("step", "copy").Flow, "a copy is no step")
	})
}

// flowHook is an EnqueueHook.
type flowHook func(job *delayq.NewJob)

func (f flowHook) Enqueue(_ context.Context, job *delayq.NewJob) { f(job) }

// Start waits for replicas, as Enqueue does.
func TestFlowWaitsForReplicas(t *testing.T) {
	t.Parallel()
	f := queuetest.NewFixture(t, redistest.Shared(t))
	client := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.WaitReplicas(1, 20*time.Millisecond))
	flow := newFlow("last")
	for range 2 {
		job, err := client.Start(t.Context(), flow)
		require.ErrorIs(t, err, delayq.ErrNotReplicated)
		require.Equal(t, "last", job.ID)
		require.Equal(t, delayq.StateScheduled, f.Get("last").State)
	}
	require.EqualValues(t, 1, f.Stats().Counters[delayq.CounterEnqueued])
}
