package tests

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// everyCall makes all calls that name a topic and an ID, and gives their errors by name.
func everyCall(ctx context.Context, c *delayq.Client, topic, id string) map[string]error {
	errs := map[string]error{}
	_, errs["enqueue"] = c.Enqueue(ctx, topic, id, nil)
	_, errs["enqueue for later"] = c.Enqueue(ctx, topic, id, nil, delayq.ProcessIn(time.Hour), delayq.Replace())
	results, err := c.EnqueueBatch(ctx, []delayq.NewJob{{Topic: topic, ID: id}})
	errs["batch"], errs["batch result"] = err, results[0].Err
	cancelled, err := c.CancelBatch(ctx, []delayq.JobRef{{Topic: topic, ID: id}})
	errs["cancel batch"], errs["cancel batch result"] = err, cancelled[0].Err
	moved, err := c.RescheduleBatch(ctx, []delayq.NewDue{{Topic: topic, ID: id, Due: delayq.ProcessIn(time.Hour)}})
	errs["reschedule batch"], errs["reschedule batch result"] = err, moved[0].Err
	got, err := c.GetBatch(ctx, []delayq.JobRef{{Topic: topic, ID: id}})
	errs["get batch"], errs["get batch result"] = err, got[0].Err
	_, errs["dequeue"] = c.Dequeue(ctx, topic, id)
	errs["reschedule"] = c.Reschedule(ctx, topic, id, delayq.ProcessIn(time.Hour))
	errs["revive"] = c.Revive(ctx, topic, id)
	_, errs["get"] = c.Get(ctx, topic, id)
	return errs
}

// topicCalls makes all calls that name a topic alone.
func topicCalls(ctx context.Context, c *delayq.Client, topic string) map[string]error {
	errs := map[string]error{}
	errs["pause"] = c.Pause(ctx, topic, delayq.Pause{})
	errs["resume"] = c.Resume(ctx, topic, "")
	errs["resume all"] = c.ResumeAll(ctx, topic)
	typed := delayq.NewTopic[string](topic)
	_, errs["typed"] = typed.Enqueue(ctx, c, "x", "value")
	return errs
}

// readerCalls makes all calls of an Inspector that name a topic.
func readerCalls(ctx context.Context, i *delayq.Inspector, topic, id string) map[string]error {
	errs := map[string]error{}
	_, errs["stats"] = i.Stats(ctx, topic)
	_, errs["job"] = i.Job(ctx, topic, id)
	q := delayq.Query{Topic: topic, State: delayq.StateReady}
	_, errs["jobs"] = i.Jobs(ctx, q)
	for _, err := range i.All(ctx, q) {
		errs["all"] = err
	}
	_, _, errs["count"] = i.Count(ctx, q)
	_, errs["failures"] = i.Failures(ctx, topic, delayq.StateReady, 0)
	_, errs["schedules"] = i.Schedules(ctx, topic)
	_, errs["schedule"] = i.Schedule(ctx, topic, "s")
	_, errs["runs"] = i.Runs(ctx, topic, "s", 1)
	_, errs["check"] = i.Check(ctx, topic)
	return errs
}

// requireInvalid wants every call refused, with every part in the text.
func requireInvalid(t *testing.T, errs map[string]error, parts ...string) {
	t.Helper()
	for call, err := range errs {
		require.ErrorIs(t, err, delayq.ErrInvalid, call)
		for _, part := range parts {
			require.ErrorContains(t, err, part, call)
		}
	}
}

// requireNothing looks for any key of the prefix. The text of a bad prefix can be anything: then
// the whole Redis must be empty.
func requireNothing(f *queuetest.Fixture) {
	f.T.Helper()
	keys, err := redistest.Census(f.T.Context(), f.RDB, f.Prefix+"*")
	require.NoError(f.T, err)
	require.Empty(f.T, keys)
	if strings.Contains(f.T.Name(), "miniredis") {
		require.Zero(f.T, f.RDB.DBSize(f.T.Context()).Val())
	}
}

// (I8, I9)
func TestInvalidTopics(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for topic, parts := range map[string][]string{
			"":                       {"empty topic"},
			"a{b":                    {`"a{b"`, "'{'", "byte 1", "not allowed"},
			"a}":                     {"'}'", "byte 1"},
			"#":                      {"'#'", "byte 0"},
			"a\nb":                   {`"a\nb"`, `'\n'`, "control characters"},
			"a\x00":                  {`'\x00'`},
			"\x7f":                   {`'\x7f'`},
			"a\xff":                  {"not valid UTF-8", `"a\xff"`},
			strings.Repeat("t", 256): {"topic of 256 bytes", "at most 255"},
			strings.Repeat("é", 128): {"topic of 256 bytes", "at most 255"},
		} {
			requireInvalid(t, everyCall(t.Context(), f.Client, topic, "x"), parts...)
			requireInvalid(t, topicCalls(t.Context(), f.Client, topic), parts...)
		}
		requireNothing(f)
	})
}

// (I8)
func TestInvalidIDs(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		requireInvalid(t, everyCall(t.Context(), f.Client, "topic", strings.Repeat("i", 1025)), "ID of 1025 bytes", "at most 1024")
		requireInvalid(t, everyCall(t.Context(), f.Client, "", strings.Repeat("i", 9999)), "ID of 9999 bytes", "empty topic")
		requireNothing(f)
		f.Enqueue(strings.Repeat("i", 1024))
	})
}

// (F2, F3, F5, I11, I13)
func TestInvalidJobs(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for name, c := range map[string]struct {
			payload []byte
			opts    []delayq.JobOption
			parts   []string
		}{
			"payload":       {make([]byte, 1<<20+1), nil, []string{"payload of 1048577 bytes", "at most 1048576"}},
			"290 years":     {nil, []delayq.JobOption{delayq.ProcessIn(290 * 365 * 24 * time.Hour)}, []string{"ProcessIn(", "at most 876000h0m0s"}},
			"far future":    {nil, []delayq.JobOption{delayq.ProcessIn(math.MaxInt64)}, []string{"ProcessIn(", "at most 876000h0m0s"}},
			"year 9999":     {nil, []delayq.JobOption{delayq.ProcessAt(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC))}, []string{"ProcessAt(9999", "2286"}},
			"year 1":        {nil, []delayq.JobOption{delayq.ProcessAt(time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC))}, []string{"ProcessAt(0001", "1970"}},
			"zero time":     {nil, []delayq.JobOption{delayq.ProcessAt(time.Time{})}, []string{"ProcessAt", "zero time"}},
			"retry":         {nil, []delayq.JobOption{delayq.Retry(-5)}, []string{"Retry(-5)", "from 0 to"}},
			"several":       {nil, []delayq.JobOption{delayq.Retry(-5), delayq.Timeout(-1), nil}, []string{"Retry(-5)", "Timeout(-1ns)", "nil"}},
			"with a topic":  {nil, []delayq.JobOption{delayq.Retry(-5)}, []string{"Retry(-5)"}},
			"many headers":  {nil, []delayq.JobOption{delayq.Header("k", strings.Repeat("v", 20_000))}, []string{"headers of 20001 bytes", "16384"}},
			"expires first": {nil, []delayq.JobOption{delayq.ExpireIn(1e9), delayq.ProcessIn(2e9)}, []string{"ExpireIn(1s) must be longer than ProcessIn(2s)"}},
		} {
			job, err := f.Client.Enqueue(t.Context(), "topic", "x", c.payload, c.opts...)
			require.Nil(t, job, name)
			results, berr := f.Client.EnqueueBatch(t.Context(), []delayq.NewJob{{Topic: "topic", Payload: c.payload, Options: c.opts}})
			requireInvalid(t, map[string]error{name: err, name + " in a batch": berr, name + "'s result": results[0].Err}, c.parts...)
			require.ErrorContains(t, berr, "job 0 of the batch")
		}
		requireNothing(f)
	})
}

func TestInvalidPayloadsByOption(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		small := queuetest.NewFixture(t, f.RDB, delayq.MaxPayload(3))
		_, err := small.Client.Enqueue(t.Context(), "topic", "x", []byte("four"))
		requireInvalid(t, map[string]error{"enqueue": err}, "payload of 4 bytes", "at most 3")
		requireNothing(small)
		_, err = small.Client.Enqueue(t.Context(), "topic", "x", []byte("yes"))
		require.NoError(t, err)
		large := queuetest.NewFixture(t, f.RDB, delayq.MaxPayload(2<<20))
		_, err = large.Client.Enqueue(t.Context(), "topic", "x", make([]byte, 2<<20))
		require.NoError(t, err)
	})
}

// A client that cannot work says so from every call, with all that is wrong. (I13)
func TestInvalidClients(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		var nilClient *redis.Client
		var nilCluster *redis.ClusterClient
		impatient := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ReadTimeout: time.Second})
		defer func() { require.NoError(t, impatient.Close()) }()
		for _, c := range map[string]struct {
			client *delayq.Client
			parts  []string
		}{
			"nil":               {delayq.NewClient(nil), []string{"nil Redis client"}},
			"nil inside":        {delayq.NewClient(nilClient), []string{"nil Redis client"}},
			"nil cluster":       {delayq.NewClient(nilCluster), []string{"nil Redis client"}},
			"empty prefix":      {delayq.NewClient(f.RDB, delayq.Prefix("")), []string{"empty prefix"}},
			"prefix with brace": {delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix+"{")), []string{"prefix", "'{'"}},
			"long wait": {
				delayq.NewClient(impatient, delayq.WaitReplicas(1, time.Second)),
				[]string{"WaitReplicas", "ReadTimeout", "1s"},
			},
			"nil option": {delayq.NewClient(f.RDB, nil), []string{"client option is nil"}},
			"several": {
				delayq.NewClient(nil, delayq.Prefix("#"), delayq.MaxPayload(-1), delayq.WaitReplicas(0, 0), delayq.Hooks(1)),
				[]string{"nil Redis client", "prefix", "MaxPayload(-1)", "WaitReplicas(0, 0s)", "hook of type int"},
			},
		} {
			ctx := t.Context()
			requireInvalid(t, everyCall(ctx, c.client, "topic", "x"), c.parts...)
			requireInvalid(t, topicCalls(ctx, c.client, "topic"), c.parts...)
			// What is wrong with the arguments is told as well.
			requireInvalid(t, everyCall(ctx, c.client, "", "x"), append(c.parts, "empty topic")...)
		}
		requireNothing(f)
	})
}

// An inspector that cannot work says so from every call, with all complaints. (I13)
func TestInvalidInspectors(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		var nilClient *redis.Client
		var nilInspector *delayq.Inspector
		ring := redis.NewRing(&redis.RingOptions{})
		defer func() { require.NoError(t, ring.Close()) }()
		for name, c := range map[string]struct {
			insp  *delayq.Inspector
			parts []string
		}{
			"nil Redis":         {delayq.NewInspector(nil), []string{"nil Redis client"}},
			"nil inside":        {delayq.NewInspector(nilClient), []string{"nil Redis client"}},
			"ring":              {delayq.NewInspector(ring), []string{"not a *redis.Ring"}},
			"empty prefix":      {delayq.NewInspector(f.RDB, delayq.Prefix("")), []string{"empty prefix"}},
			"prefix with brace": {delayq.NewInspector(f.RDB, delayq.Prefix(f.Prefix+"{")), []string{"prefix", "'{'"}},
			"nil option":        {delayq.NewInspector(f.RDB, nil), []string{"inspector option is nil"}},
			"nil":               {nilInspector, []string{"nil Inspector"}},
			"zero":              {new(delayq.Inspector), []string{"zero Inspector: use NewInspector"}},
			"several": {
				delayq.NewInspector(nil, delayq.Prefix("#"), delayq.Hooks(1, new(queuetest.HookLog))),
				[]string{"nil Redis client", "prefix", "hook of type int"},
			},
		} {
			ctx := t.Context()
			requireInvalid(t, readerCalls(ctx, c.insp, "topic", "x"), c.parts...)
			requireInvalid(t, readerCalls(ctx, c.insp, "", "x"), append(c.parts, "empty topic")...)
			_, terr := c.insp.Topics(ctx)
			_, serr := c.insp.Servers(ctx)
			_, aerr := c.insp.Stats(ctx)
			requireInvalid(t, map[string]error{name + " topics": terr, name + " servers": serr, name + " stats": aerr}, c.parts...)
		}
		requireInvalid(t, map[string]error{"job": queuetest.ErrOf(f.Inspector.Job(t.Context(), "topic", strings.Repeat("x", 1025)))}, "ID of 1025 bytes")
		requireInvalid(t, map[string]error{"stats": queuetest.ErrOf(f.Inspector.Stats(t.Context(), "topic", "{", "}"))}, `topic "{"`, `topic "}"`)
		requireNothing(f)
	})
}

// A nil context is refused like any other argument that cannot be used. (I13)
func TestInvalidContexts(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		var none context.Context
		requireInvalid(t, everyCall(none, f.Client, "topic", "x"), "nil context")
		requireInvalid(t, topicCalls(none, f.Client, "topic"), "nil context")
		requireInvalid(t, readerCalls(none, f.Inspector, "topic", "x"), "nil context")
		_, terr := f.Inspector.Topics(none)
		_, serr := f.Inspector.Servers(none)
		server := delayq.NewServer(f.RDB, queuetest.Quiet(f.Prefix)...)
		server.HandlerFunc("topic", queuetest.Nothing)
		requireInvalid(t, map[string]error{"topics": terr, "servers": serr, "run": server.Run(none)}, "nil context")
		requireNothing(f)
	})
}

func TestInvalidPauses(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		long := strings.Repeat("x", 1025)
		requireInvalid(t, map[string]error{
			"negative": f.Client.Pause(t.Context(), "topic", delayq.Pause{For: -time.Hour}),
			"too long": f.Client.Pause(t.Context(), "topic", delayq.Pause{For: century + 1}),
		}, "Pause.For(", "876000h0m0s")
		requireInvalid(t, map[string]error{
			"tiny": f.Client.Pause(t.Context(), "topic", delayq.Pause{For: 30}),
		}, "Pause.For(30ns)", "at least 1ms")
		requireInvalid(t, map[string]error{
			"by":     f.Client.Pause(t.Context(), "topic", delayq.Pause{By: long}),
			"reason": f.Client.Pause(t.Context(), "topic", delayq.Pause{Reason: long}),
		}, "1025", "at most 1024")
		requireInvalid(t, map[string]error{"all": f.Client.Pause(t.Context(), "", delayq.Pause{By: long, Reason: long, For: -1})}, "empty topic", "Pause.For(", "at most 1024")
		requireNothing(f)
	})
}

func TestInvalidTypedTopics(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		_, noCodec := delayq.NewTopic[int]("topic", delayq.WithCodec(nil)).Enqueue(ctx, f.Client, "x", 1)
		_, noOption := delayq.NewTopic[int]("topic", nil).Enqueue(ctx, f.Client, "x", 1)
		_, noFunc := delayq.NewTopic[func()]("topic").Enqueue(ctx, f.Client, "x", func() {})
		_, noChan := delayq.NewTopic[chan int]("topic", delayq.JSON).Enqueue(ctx, f.Client, "x", nil)
		requireInvalid(t, map[string]error{"nil codec": noCodec}, "nil codec", `"topic"`)
		requireInvalid(t, map[string]error{"nil option": noOption}, "option is nil", `"topic"`)
		requireInvalid(t, map[string]error{"func": noFunc, "channel": noChan}, "encode", `"topic"`)
		requireNothing(f)
	})
}
