package delayq

import "github.com/delayq/delayq/internal/serve"

import "time"

// Health says how a server is doing, as far as the server knows without asking Redis. See
// [Server.Health].
type Health struct {
	// ID is the server's name in Redis, and Version that of delayq, from the build information.
	ID, Version string

	State ServerState
	Since time.Time // when the server entered State
	Redis RedisHealth

	// Topics holds the topics that the server serves, by name. It is empty while the server does
	// not run.
	Topics []TopicHealth

	// Loops describes the loops of the server, by name: all loops of one name together.
	Loops []LoopHealth

	// Late holds the loops that do not turn, the latest first. In a healthy server it is empty,
	// whatever Redis does.
	Late []LateLoop
}

// RedisHealth says how Redis is doing, as a server sees it. All times are by the server's clock.
type RedisHealth struct {
	AnsweredAt time.Time // the last reply to a script; zero: there was none
	AwaySince  time.Time // when the present outage began; zero: there is none

	// Err is the last error that concerned Redis as a whole, such as a refused connection, and
	// FailedAt when it happened. They remain when Redis is back.
	Err      error
	FailedAt time.Time
}

// TopicHealth says what a server does for a topic.
type TopicHealth struct {
	Topic   string
	Workers int    // its Concurrency; in a pool, the most workers that the topic can have
	Running int    // number of running handlers; a batch is one
	Pool    string // its [Pool]; empty: workers of its own
	// Held is the number of jobs that belong to the server: those that run, those that it has taken
	// ahead, and those whose outcomes it still has to report to Redis.
	Held   int
	Oldest RunningJob // the job that has run longest; zero: none runs

	// Failing holds the calls that Redis answers with an error, and the errors: a missing
	// permission or a key of a wrong type, for example. It is nil if there is none.
	Failing map[string]string
}

// LoopHealth describes the loops of one name: those of all topics, such as promote and take, or one
// of the server itself, such as heartbeat.
type LoopHealth struct {
	Name  string
	Count int
	Late  int // how many of them are late

	// Age is the time since the last turn of the loop that has rested longest. That can be long:
	// settle, for example, waits until a job ends.
	Age time.Duration
}

// A LateLoop is a loop that does not turn.
type LateLoop struct {
	Name  string
	Topic string        // empty: a loop of the server itself
	Late  time.Duration // since it should have turned
}

// Health returns how the server is doing. It makes no call to Redis and never waits for one, so it
// returns at once when Redis is away.
//
// A loop is late when it should have turned more than three ticks ago ([Tick]), and at least 1 s
// ago. Then it hangs: in code of the user that it has called, such as a hook or the handler of the
// [Logger], or by an error in delayq. A loop is not late while it waits for Redis, up to the
// timeout of the call, while it waits for something to do, while other loops use the goroutines
// that it needs, or during the pause after a failure. A handler of a job makes no loop late,
// because it does not run in a loop. After the process was suspended, loops can be late for a
// moment.
//
// Health of a nil or zero Server is the zero Health. It is safe for concurrent use. Cost: it looks
// at every topic and at every job that the server holds, and locks one topic at a time. For 1,000
// idle topics that is about a millisecond.
func (s *Server) Health() Health {
	if s == nil || s.engine == nil {
		return Health{}
	}
	now := s.engine.Health()
	h := Health{
		ID: s.engine.Config.ID, Version: serve.Version(), State: ServerState(now.State), Since: now.Since,
		Redis: RedisHealth{AnsweredAt: now.Answered, AwaySince: now.AwaySince, Err: now.Cause, FailedAt: now.Failed},
	}
	for _, t := range now.Topics {
		h.Topics = append(h.Topics, TopicHealth{
			Topic: t.Topic, Workers: t.Workers, Running: t.Running, Pool: t.Pool, Held: t.Held,
			Oldest: RunningJob{ID: t.Oldest, Running: t.Ran}, Failing: t.Failing,
		})
	}
	for _, l := range now.Loops {
		h.Loops = append(h.Loops, LoopHealth(l))
	}
	for _, l := range now.Late {
		h.Late = append(h.Late, LateLoop(l))
	}
	return h
}

// Ready returns a channel that is closed when [Server.Run] has reached Redis and takes jobs. It
// stays closed when the server stops. If Run returns before that, the channel is never closed, nor
// is it for a nil or zero Server.
func (s *Server) Ready() <-chan struct{} {
	if s == nil || s.engine == nil {
		return nil
	}
	return s.engine.Ready()
}
