package delayqotel_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/script"
	delayqotel "github.com/delayq/delayq/otel"
)

// With redisotel on the same client, a job has two spans, and the program's own commands have
// theirs.
func TestQuietWithRedisotel(t *testing.T) {
	for name, c := range map[string]struct {
		filters []redisotel.TracingOption
		quiet   bool
	}{
		"quiet": {[]redisotel.TracingOption{
			redisotel.WithCommandFilter(delayqotel.QuietPrefix(queuetest.Prefix).Quiet),
			redisotel.WithCommandsFilter(delayqotel.QuietPrefix(queuetest.Prefix).QuietPipeline),
		}, true},
		"loud": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				r := record()
				require.NoError(b, redisotel.InstrumentTracing(b.RDB,
					append(c.filters, redisotel.WithTracerProvider(r.provider), redisotel.WithDialFilter(true))...))
				client, _ := serve(b, "mail", func(ctx context.Context, job *delayq.Job) error {
					return b.RDB.Set(ctx, "of the program", job.ID, 0).Err()
				}, []delayq.Hook{r.tracing(delayqotel.LinkRetries(b.Inspector))})
				const jobs = 20
				for at := range jobs {
					enqueue(b, client, "mail", fmt.Sprint(at), delayq.ProcessIn(time.Duration(at)*time.Minute))
				}
				b.Pass(time.Hour)
				_, err := b.Inspector.Stats(b.Context())
				require.NoError(b, err)
				require.Len(b, r.named("process mail"), jobs)
				require.Len(b, r.named("set"), jobs)
				require.Equal(b, r.of("7")[0].SpanContext().SpanID(), r.named("set")[7].Parent().SpanID())
				// without those of the program, and those of new connections
				spans := len(r.spans()) - jobs - len(r.named("hello"))
				if c.quiet {
					require.Equal(b, 2*jobs, spans)
				} else {
					require.Greater(b, spans, 3*jobs-1)
				}
			})
		})
	}
}

// Every command that delayq sends is quiet, except those without a key.
func TestQuietKnowsAllCommands(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		tap := &tap{}
		o := b.Redis.Options()
		o.Dialer = tap.dial(o.Dialer)
		rdb := redis.NewClient(o)
		defer rdb.Close()
		client := delayq.NewClient(rdb, delayq.Prefix(queuetest.Prefix))
		inspector := delayq.NewInspector(rdb, delayq.Prefix(queuetest.Prefix))
		s := queuetest.ServeMany(b.T, rdb, queuetest.Prefix, func(s *delayq.Server) {
			for topic := range 6 { // from five on, a server waits for rings
				s.HandlerFunc(fmt.Sprint("t", topic), func(_ context.Context, job *delayq.Job) error {
					switch name, _, _ := strings.Cut(job.ID, "/"); {
					case name == "retry" && job.Attempt == 1:
						return errTest
					case name == "bury":
						return delayq.Permanent(errTest)
					case name == "snooze" && job.Snoozes == 0:
						return delayq.Snooze(time.Minute)
					case name == "again" && string(job.Payload) != "next":
						return delayq.Again([]byte("next"))
					}
					return nil
				})
			}
			s.HandlerFunc("pattern.*", func(context.Context, *delayq.Job) error { return nil })
		}, delayq.DeadLimit(1, time.Hour))
		// a server of few topics waits by blocking commands
		few := queuetest.Serve(b.T, rdb, queuetest.Prefix, "few", func(context.Context, *delayq.Job) error { return nil })
		ctx := delayq.WithActor(b.Context(), "anna")
		for topic := range 6 {
			topic := fmt.Sprint("t", topic)
			for _, id := range []string{"ok", "retry", "bury", "snooze", "again"} {
				enqueue(b, client, topic, id, delayq.Retention(time.Minute))
			}
			enqueue(b, client, topic, "later", delayq.ProcessIn(time.Hour))
			require.NoError(b, client.Schedule(ctx, topic, "s", delayq.Every(time.Minute), nil))
			require.NoError(b, client.Reschedule(ctx, topic, "later", delayq.ProcessIn(2*time.Hour)))
			require.NoError(b, client.Bury(ctx, topic, "later", "why"))
			require.NoError(b, client.Revive(ctx, topic, "later"))
			_, err := client.Enqueue(ctx, topic, "x", nil, delayq.Replace(), delayq.ProcessIn(time.Hour))
			require.NoError(b, err)
			_, err = client.Dequeue(ctx, topic, "x")
			require.NoError(b, err)
			require.NoError(b, client.Pause(ctx, topic, delayq.Pause{}))
			require.NoError(b, client.ResumeAll(ctx, topic))
			_, err = client.Trigger(ctx, topic, "s")
			require.NoError(b, err)
		}
		b.Pass(5 * time.Minute)
		for range inspector.All(ctx, delayq.Query{Topic: "t1", State: delayq.StateScheduled}) {
		}
		_, err := inspector.Stats(ctx)
		require.NoError(b, err)
		_, err = inspector.DueWithin(ctx, time.Now(), []time.Duration{time.Hour}, "t1", "t2")
		require.NoError(b, err)
		_, err = inspector.Find(ctx, "later")
		require.NoError(b, err)
		_, err = inspector.Audit(ctx, 10)
		require.NoError(b, err)
		_, err = inspector.Schedules(ctx, "t1")
		require.NoError(b, err)
		require.NoError(b, few.Stop())
		require.NoError(b, s.Stop())

		f := delayqotel.QuietPrefix(queuetest.Prefix)
		other := delayqotel.QuietPrefix("other")
		quiet, loud := map[string]int{}, map[string]int{}
		for _, cmd := range tap.commands(b) {
			if f.Quiet(cmd) {
				quiet[cmd.Name()]++
			} else {
				loud[cmd.Name()]++
			}
			if !strings.HasPrefix(cmd.Name(), "eval") {
				require.False(b, other.Quiet(cmd), cmd)
			}
			require.Equal(b, f.Quiet(cmd), f.QuietPipeline([]redis.Cmder{cmd}), cmd)
		}
		for _, name := range []string{"evalsha", "eval", "evalsha_ro", "eval_ro", "blmove", "hscan", "hdel", "sscan", "zcount", "lrange"} {
			require.Positive(b, quiet[name], name)
		}
		for name := range loud {
			require.Contains(b, []string{"hello", "client", "info", "ping", "time", "subscribe"}, name)
		}
	})
}

// Commands of the program are not quiet, and passwords never get into a span.
func TestQuietCommands(t *testing.T) {
	t.Parallel()
	cmd := func(args ...any) redis.Cmder { return redis.NewCmd(t.Context(), args...) }
	digest, key := delayq.Scripts()["take"], "delayq:{mail}:pool"
	for _, c := range []struct {
		cmd   redis.Cmder
		quiet bool
	}{
		{cmd("EVALSHA", digest, 0), true},
		{cmd("evalsha_ro", digest, 0), true},
		{cmd("evalsha", "of the program", 0), false},
		{cmd("eval", "return 1", 0), false},
		{cmd("eval"), false},
		{cmd("get", "x"), false},
		{cmd("get"), false},
		{cmd("ping"), false},
		{cmd("hget", key, "id"), true},
		{cmd("hget", &key, "id"), true},
		{cmd("hget", []byte(key), "id"), true},
		{cmd("hget", (*string)(nil), "id"), false},
		{cmd("hget", "delayq:{mail", "id"), false},
		{cmd("hget", "delayq:mine", "id"), false},
		{cmd("hget", "delayqx:{mail}:pool", "id"), false},
		{cmd("hset", "delayq:servers", "id"), true},
		{cmd("publish", script.ControlChannel("delayq"), "x"), true},
		{cmd("auth", "secret"), true},
		{cmd("HELLO", 3, "AUTH", "user", "secret"), true},
		{cmd("hello", 3, "setname", "x", "auth", "user", "secret"), true},
		{cmd("hello", 3), false},
	} {
		require.Equal(t, c.quiet, delayqotel.Quiet(c.cmd), c.cmd.Args())
	}
	ours, theirs := cmd("evalsha", digest, 0), cmd("get", "x")
	require.True(t, delayqotel.QuietPipeline([]redis.Cmder{ours, cmd("wait", 1, 100)}))
	require.False(t, delayqotel.QuietPipeline([]redis.Cmder{ours, theirs}))
	require.True(t, delayqotel.QuietPipeline([]redis.Cmder{theirs, cmd("auth", "secret")}))
	require.False(t, delayqotel.QuietPipeline([]redis.Cmder{cmd("ping")}))
	require.False(t, delayqotel.QuietPipeline(nil))
}

// A tap keeps what is written to connections.
type tap struct {
	mu    sync.Mutex
	conns []*bytes.Buffer
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

func (t *tap) dial(inner dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := inner(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.conns = append(t.conns, &bytes.Buffer{})
		return &tapped{conn, t, t.conns[len(t.conns)-1]}, nil
	}
}

type tapped struct {
	net.Conn
	tap *tap
	to  *bytes.Buffer
}

func (c *tapped) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	c.to.Write(p[:n])
	return n, err
}

// commands returns all commands.
func (t *tap) commands(b *queuetest.Bubble) (list []redis.Cmder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, conn := range t.conns {
		for r := bufio.NewReader(conn); ; {
			n, err := header(r, '*')
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(b, err)
			args := make([]any, n)
			for at := range args {
				size, err := header(r, '$')
				require.NoError(b, err)
				word := make([]byte, size+2)
				_, err = io.ReadFull(r, word)
				require.NoError(b, err)
				args[at] = string(word[:size])
			}
			list = append(list, redis.NewCmd(b.Context(), args...))
		}
	}
	return slices.Clip(list)
}

// header reads a number of the protocol of Redis.
func header(r *bufio.Reader, kind byte) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, fmt.Errorf("%q instead of %q", line, kind)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}
