package tests

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// methodsWithContext are the exported methods of these values whose first parameter is a context.
func methodsWithContext(v any) (names []string) {
	of := reflect.TypeOf(v)
	for i := range of.NumMethod() {
		if m := of.Method(i); m.Type.NumIn() > 1 && m.Type.In(1) == reflect.TypeFor[context.Context]() {
			names = append(names, m.Name)
		}
	}
	return names
}

// callWith calls a method with this context and arguments that are fine, and gives the error that
// it returns.
func callWith(t *testing.T, receiver reflect.Value, name string, ctx context.Context, client *delayq.Client) (err error) {
	t.Helper()
	method := receiver.MethodByName(name)
	in := method.Type()
	args := []reflect.Value{reflect.Zero(in.In(0))}
	if ctx != nil {
		args[0] = reflect.ValueOf(ctx)
	}
	texts := 0
	for i := 1; i < in.NumIn(); i++ {
		if in.IsVariadic() && i == in.NumIn()-1 {
			break
		}
		switch of := in.In(i); {
		case of == reflect.TypeFor[delayq.Enqueuer](), of == reflect.TypeFor[delayq.Scheduler]():
			args = append(args, reflect.ValueOf(client))
		case of == reflect.TypeFor[delayq.Spec]():
			args = append(args, reflect.ValueOf(delayq.Every(time.Hour)))
		case of == reflect.TypeFor[delayq.State]():
			args = append(args, reflect.ValueOf(delayq.StateDead))
		case of == reflect.TypeFor[delayq.JobOption]():
			args = append(args, reflect.ValueOf(delayq.ProcessIn(time.Hour)))
		case of == reflect.TypeFor[[]delayq.NewJob]():
			args = append(args, reflect.ValueOf([]delayq.NewJob{{Topic: "topic"}}))
		case of == reflect.TypeFor[[]delayq.NewSchedule]():
			args = append(args, reflect.ValueOf([]delayq.NewSchedule{{Topic: "topic", Name: "s", Spec: delayq.Every(time.Hour)}}))
		case of == reflect.TypeFor[[]delayq.JobRef]():
			args = append(args, reflect.ValueOf([]delayq.JobRef{{Topic: "topic"}}))
		case of == reflect.TypeFor[[]delayq.NewDue]():
			args = append(args, reflect.ValueOf([]delayq.NewDue{{Topic: "topic", Due: delayq.ProcessIn(0)}}))
		case of.Kind() == reflect.String:
			texts++
			args = append(args, reflect.ValueOf(fmt.Sprint("text", texts)).Convert(of))
		case of.Kind() == reflect.Int:
			args = append(args, reflect.ValueOf(texts)) // an offset of 2 or a limit of 1 to 3
		default:
			args = append(args, reflect.Zero(of))
		}
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s PANICS: %v", name, p)
		}
	}()
	results := method.Call(args)
	if jobs, ok := results[0].Interface().(iter.Seq2[*delayq.JobInfo, error]); ok {
		for _, err := range jobs {
			return err
		}
	}
	err, _ = results[len(results)-1].Interface().(error)
	return err
}

// Every method that takes a context refuses a nil one, and every method refuses to work on a value
// that no constructor has made: a new one cannot forget it. (I13)
func TestMisuseOfEveryMethod(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		server := delayq.NewServer(f.RDB, queuetest.Quiet(f.Prefix)...)
		server.HandlerFunc("topic", queuetest.Nothing)
		mail := delayq.NewTopic[string]("topic")
		var noClient *delayq.Client
		var noServer *delayq.Server
		var noTopic *delayq.Topic[string]
		var noInspector *delayq.Inspector
		ctx := t.Context()
		called := make(map[string]bool)
		for _, c := range []struct {
			what     string
			receiver any
			ctx      context.Context
			client   *delayq.Client // of a Topic's method
			says     string
		}{
			{"nil context", f.Client, nil, nil, "nil context"},
			{"nil context", server, nil, nil, "nil context"},
			{"nil context", mail, nil, f.Client, "nil context"},
			{"zero client", new(delayq.Client), ctx, nil, "zero Client"},
			{"nil client", noClient, ctx, nil, "nil Client"},
			{"nil client and context", noClient, nil, nil, "nil Client"},
			{"nil context", f.Inspector, nil, nil, "nil context"},
			{"zero inspector", new(delayq.Inspector), ctx, nil, "zero Inspector"},
			{"nil inspector", noInspector, ctx, nil, "nil Inspector"},
			{"nil inspector and context", noInspector, nil, nil, "nil Inspector"},
			{"zero server", new(delayq.Server), ctx, nil, "zero Server"},
			{"nil server", noServer, ctx, nil, "nil Server"},
			{"zero topic", new(delayq.Topic[string]), ctx, f.Client, "zero Topic"},
			{"nil topic", noTopic, ctx, f.Client, "nil Topic"},
			{"nil client", mail, ctx, nil, "nil Client"},
			{"zero client", mail, ctx, new(delayq.Client), "zero Client"},
		} {
			for _, name := range methodsWithContext(c.receiver) {
				err := callWith(t, reflect.ValueOf(c.receiver), name, c.ctx, c.client)
				require.ErrorIs(t, err, delayq.ErrInvalid, "%s: %T.%s", c.what, c.receiver, name)
				require.ErrorContains(t, err, c.says, "%s: %T.%s", c.what, c.receiver, name)
				called[fmt.Sprintf("%T.%s", c.receiver, name)] = true
			}
		}
		for _, some := range []string{"*delayq.Client.Enqueue", "*delayq.Inspector.Check", "*delayq.Client.Trigger", "*delayq.Server.Run", "*delayq.Topic[string].Schedule"} {
			require.True(t, called[some], "%s is not among %v", some, called)
		}
		requireNothing(f)
	})
}

// The methods without a context do no harm either: Run, or the call that follows, says what is
// wrong.
func TestMisuseOfMethodsWithoutContext(t *testing.T) {
	t.Parallel()
	var noServer *delayq.Server
	var noTopic *delayq.Topic[int]
	handle := func(context.Context, *delayq.Job, int) error { return nil }
	for _, s := range []*delayq.Server{noServer, new(delayq.Server)} {
		s.Handle("topic", delayq.HandlerFunc(queuetest.Nothing))
		s.HandlerFunc("topic", queuetest.Nothing)
		s.Use(func(h delayq.Handler) delayq.Handler { return h })
		s.Calendar("bank-days", everyHour{})
		for _, mail := range []*delayq.Topic[int]{noTopic, new(delayq.Topic[int]), delayq.NewTopic[int]("topic")} {
			mail.Handle(s, handle)
		}
		require.Empty(t, s.ID())
		require.ErrorIs(t, s.Run(t.Context()), delayq.ErrInvalid)
	}
	for _, mail := range []*delayq.Topic[int]{noTopic, new(delayq.Topic[int])} {
		require.Empty(t, mail.Name())
		_, err := mail.Job("x", 1)
		require.ErrorIs(t, err, delayq.ErrInvalid)
		_, err = mail.Decode(&delayq.Job{})
		require.ErrorIs(t, err, delayq.ErrInvalid)
		require.ErrorIs(t, mail.SetOutput(&delayq.Job{}, 1), delayq.ErrInvalid)
		require.ErrorIs(t, mail.Then(&delayq.Job{}, "x", 1), delayq.ErrInvalid)
	}
	mail := delayq.NewTopic[int]("topic")
	_, err := mail.Decode(nil)
	require.ErrorIs(t, err, delayq.ErrInvalid)
	require.ErrorIs(t, mail.SetOutput(nil, 1), delayq.ErrInvalid)
	require.ErrorIs(t, mail.Then(nil, "x", 1), delayq.ErrInvalid)
	require.ErrorIs(t, mail.Then(&delayq.Job{}, "x", 1), delayq.ErrInvalid)
	var job *delayq.Job
	require.ErrorIs(t, job.Then("topic", "x", nil), delayq.ErrInvalid)
	require.ErrorIs(t, new(delayq.Job).Then("topic", "x", nil), delayq.ErrInvalid)
	require.ErrorIs(t, mail.SetOutput(&delayq.Job{}, func() {}), delayq.ErrInvalid)
}

type everyHour struct{}

func (everyHour) Next(after time.Time) time.Time { return after.Add(time.Hour) }

type pointerHandler struct{ calls int }

func (h *pointerHandler) Handle(context.Context, *delayq.Job) error { h.calls++; return nil }

// pointerCalendar is one that a nil pointer is no substitute for.
type pointerCalendar struct{ step time.Duration }

func (c *pointerCalendar) Next(after time.Time) time.Time { return after.Add(c.step) }

// What is nil inside of an interface would panic at every job, or at every slot.
func TestMisuseByTypedNils(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { require.NoError(t, rdb.Close()) }()
	var handler *pointerHandler
	var calendar *pointerCalendar
	for says, setup := range map[string]func(*delayq.Server){
		"nil handler":                       func(s *delayq.Server) { s.Handle("b", handler) },
		`calendar "c" is nil`:               func(s *delayq.Server) { s.Calendar("c", calendar) },
		"a middleware returned a nil":       func(s *delayq.Server) { s.Use(func(delayq.Handler) delayq.Handler { return nil }) },
		"middleware returned a nil handler": func(s *delayq.Server) { s.Use(func(delayq.Handler) delayq.Handler { return handler }) },
		"nil codec": func(s *delayq.Server) {
			delayq.NewTopic[int]("b", delayq.WithCodec(nil)).Handle(s, func(context.Context, *delayq.Job, int) error { return nil })
		},
	} {
		s := delayq.NewServer(rdb, queuetest.Quiet("q")...)
		s.HandlerFunc("a", queuetest.Nothing)
		setup(s)
		for range 2 { // the second time as well
			err := s.Run(t.Context())
			require.ErrorIs(t, err, delayq.ErrInvalid, says)
			require.ErrorContains(t, err, says)
		}
	}
}

// A client that no server can work for is refused, and so is one that spreads what belongs
// together.
func TestMisuseOfOtherRedisClients(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer func() { require.NoError(t, ring.Close()) }()
	for name, rdb := range map[string]redis.UniversalClient{"*redis.Ring": ring, "tests.wrapped": wrapped{ring}} {
		requireInvalid(t, everyCall(t.Context(), delayq.NewClient(rdb), "topic", "x"), "*redis.Client or a *redis.ClusterClient", name)
		server := delayq.NewServer(rdb)
		server.HandlerFunc("topic", queuetest.Nothing)
		requireInvalid(t, map[string]error{"run": server.Run(t.Context())}, "*redis.Client or a *redis.ClusterClient", name)
	}
}

type wrapped struct{ redis.UniversalClient }

// Every error of a client names its topic and its job or schedule, whatever has gone wrong, and in
// the same form. (I13)
func TestErrorsNameTopicAndJob(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		where := `topic "mail" job "welcome"`
		for call, err := range everyCall(ctx, f.Client, "mail", "welcome") {
			if err != nil { // some find the job
				require.ErrorContains(t, err, where, call)
			}
		}
		var none context.Context
		away := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
		defer func() { require.NoError(t, away.Close()) }()
		for what, errs := range map[string]map[string]error{
			"nil context":  everyCall(none, f.Client, "mail", "welcome"),
			"Redis away":   everyCall(ctx, delayq.NewClient(away), "mail", "welcome"),
			"wrong client": everyCall(ctx, delayq.NewClient(nil), "mail", "welcome"),
		} {
			for call, err := range errs {
				require.ErrorContains(t, err, where, "%s: %s", what, call)
				require.Equal(t, 1, strings.Count(err.Error(), `"mail"`), "%s: %s: %v", what, call, err)
			}
			for call, err := range scheduleCalls(ctx, delayq.NewClient(away), "mail", "nightly") {
				require.ErrorContains(t, err, `topic "mail" schedule "nightly": `, call)
				require.Equal(t, 1, strings.Count(err.Error(), "schedule \""), "%s: %v", call, err)
			}
		}
		for call, err := range scheduleCalls(ctx, f.Client, "mail", "nightly") {
			if err != nil {
				require.ErrorIs(t, err, delayq.ErrNotFound, call)
				require.ErrorContains(t, err, `topic "mail" schedule "nightly": `, call)
			}
		}
		_, err := f.Client.Get(ctx, "mail", "nobody")
		require.EqualError(t, err, `get topic "mail" job "nobody": delayq: not found`)
		_, err = f.Client.Dequeue(ctx, "mail", "nobody")
		require.EqualError(t, err, `cancel topic "mail" job "nobody": delayq: not found`)
		_, err = f.Client.Trigger(ctx, "mail", "nobody")
		require.EqualError(t, err, `trigger topic "mail" schedule "nobody": delayq: not found`)
	})
}

// scheduleCalls makes all calls that name a topic and a schedule, and gives their errors by name.
func scheduleCalls(ctx context.Context, c *delayq.Client, topic, name string) map[string]error {
	errs := map[string]error{}
	errs["unschedule"] = c.Unschedule(ctx, topic, name)
	errs["pause"] = c.PauseSchedule(ctx, topic, name)
	errs["resume"] = c.ResumeSchedule(ctx, topic, name)
	_, errs["trigger"] = c.Trigger(ctx, topic, name)
	errs["schedule"] = c.Schedule(ctx, topic, name, delayq.Every(time.Hour), nil)
	return errs
}

// A duration that was meant in seconds is in nanoseconds, and never what anybody wants.
func TestTinyDurations(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		_, in := f.Client.Enqueue(t.Context(), "topic", "x", nil, delayq.ProcessIn(30))
		_, timeout := f.Client.Enqueue(t.Context(), "topic", "x", nil, delayq.Timeout(30))
		_, retention := f.Client.Enqueue(t.Context(), "topic", "x", nil, delayq.Retention(30))
		_, expire := f.Client.Enqueue(t.Context(), "topic", "x", nil, delayq.ExpireIn(30))
		server := delayq.NewServer(f.RDB, delayq.Prefix(f.Prefix), delayq.Drain(30))
		server.HandlerFunc("topic", queuetest.Nothing)
		errs := map[string]error{
			"ProcessIn": in, "Timeout": timeout, "Retention": retention, "ExpireIn": expire, "Drain": server.Run(t.Context()),
			"Reschedule": f.Client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(30)),
			"Every":      f.Client.Schedule(t.Context(), "topic", "x", delayq.Every(30), nil),
			"Jitter":     f.Client.Schedule(t.Context(), "topic", "x", delayq.Every(time.Hour), nil, delayq.Jitter(30)),
		}
		requireInvalid(t, errs, "(30ns): at least 1ms", "30*time.Second")
		_, backoff := f.Client.Enqueue(t.Context(), "topic", "x", nil, delayq.Backoff(30, 60))
		requireInvalid(t, map[string]error{"Backoff": backoff}, "Backoff(30ns, 60ns)", "1ms")
		requireNothing(f)
		for i, d := range []time.Duration{-1, 0, time.Millisecond, -time.Hour} {
			_, err := f.Client.Enqueue(t.Context(), "topic", fmt.Sprint(i), nil, delayq.ProcessIn(d))
			require.NoError(t, err, d)
		}
		require.True(t, slices.Contains([]delayq.State{delayq.StateReady, delayq.StateScheduled}, queuetest.StateOf(t, f.Client, "topic", "0")))
	})
}
