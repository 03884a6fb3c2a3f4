package hand

import (
	"context"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/fire"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// A Timer promotes and fires when the test says so, as the promote loop of a topic does.
type Timer struct {
	Scripts script.Caller
	Firer   *fire.Firer
	keys    *script.Keys
}

// NewTimer returns the Timer of a topic. It is the worker, if the client is divided among
// the roles.
func NewTimer(rdb redis.UniversalClient, k *script.Keys, log *slog.Logger) *Timer {
	rdb, test := redistest.Worker(rdb, k.Prefix())
	t := &Timer{Scripts: script.Caller{RDB: rdb, Hooks: tally{test}}, keys: k}
	t.Firer = fire.New(k, time.Second, nil, log, func(ctx context.Context, s *script.Script, jobs int, args ...any) (script.Reply, error) {
		return t.Scripts.Exec(ctx, s, k, "", jobs, args...)
	})
	return t
}

// A tally counts the calls that a Timer makes for a test as the worker.
type tally struct{ test string }

func (l tally) Listens() bool { return l.test != "" }

func (l tally) Called(e script.Event) { redistest.Count("worker", e.Name, l.test) }

// Promoted is what promote says of schedules.
type Promoted struct{ Due, Waiting int }

// Promote is one call of the promote script.
func (t *Timer) Promote(ctx context.Context, _ bool) (Promoted, error) {
	r, err := t.Scripts.Exec(ctx, script.Promote, t.keys, "", 250, 250, 0, script.ControlChannel(t.keys.Prefix()), t.keys.Topic)
	return Promoted{int(r.Number(5)), int(r.Number(6))}, err
}
