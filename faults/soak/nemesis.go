package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq/faults/rig"
)

// A fault breaks something for a time. It returns when it is over.
type fault struct {
	kind   string
	weight int
	do     func(ctx context.Context, n *nemesis, d time.Duration) error
}

// nemesis does one fault after the other, at random times and places.
type nemesis struct {
	*Soak
	r *rand.Rand
}

// quiet is how long it rests between two faults at most: long enough for what comes of a fault to
// be seen outside of any.
const quiet = 3 * time.Second

func (s *Soak) nemesis(ctx context.Context) error {
	n := &nemesis{s, rand.New(rand.NewPCG(s.Seed, 1000))} //nolint:gosec // not for secrets
	faults, sum := faults, 0
	if s.box != nil {
		faults = append(slices.Clip(faults), relayFaults...)
	}
	if s.db != nil && !s.Steady {
		faults = append(slices.Clip(faults), databaseFaults...)
	}
	for _, f := range faults {
		sum += f.weight
	}
	for n.sleep(ctx, time.Duration(n.r.Int64N(int64(quiet)))) {
		at := n.r.IntN(sum)
		for _, f := range faults {
			if at -= f.weight; at < 0 {
				// Half of them are short, a few longer than the lease.
				d := time.Duration(50+n.r.IntN(500)) * time.Millisecond
				if n.r.IntN(2) == 0 {
					d = time.Duration(n.r.Int64N(int64(3 * lease)))
				}
				if err := f.do(ctx, n, d); err != nil {
					return fmt.Errorf("fault %s: %w", f.kind, err)
				}
				break
			}
		}
	}
	return nil
}

func (n *nemesis) sleep(ctx context.Context, d time.Duration) bool { return wait(ctx, d) }

// during notes a fault that hits a process (empty: all) from its beginning to its end.
func (n *nemesis) during(ctx context.Context, kind, proc string, d time.Duration, begin, end func() error) error {
	n.rec.Record(rig.Event{Op: rig.OpFault, Result: kind, ID: proc})
	err := begin()
	if err == nil {
		n.sleep(ctx, d)
		err = end()
	}
	n.rec.Record(rig.Event{Op: rig.OpHeal, Result: kind, ID: proc})
	return err
}

// wire picks one side's network.
func (n *nemesis) wire() (name string, p *rig.Proxy) {
	name = enqueuers
	if i := n.r.IntN(len(n.workers) + 1); i < len(n.workers) {
		name = n.workers[i].Name()
	}
	return name, n.proxies[name]
}

// worker picks a process: a worker, or a relay if there are any.
func (n *nemesis) worker() *rig.Worker { return n.workers[n.r.IntN(len(n.workers))] }

// relay picks a relay.
func (n *nemesis) relay() *rig.Worker { return n.workers[workers+n.r.IntN(relays)] }

// onWire is a fault of one side's network.
func onWire(kind string, weight int, begin func(n *nemesis, p *rig.Proxy)) fault {
	return fault{kind, weight, func(ctx context.Context, n *nemesis, d time.Duration) error {
		name, p := n.wire()
		return n.during(ctx, kind, name, d,
			func() error { begin(n, p); return nil },
			func() error { p.Heal(); return nil })
	}}
}

// dropping loses replies of some scripts.
func dropping(side string, weight int, scripts ...string) fault {
	kind := "drop " + strings.Join(scripts, "/")
	return fault{kind, weight, func(ctx context.Context, n *nemesis, d time.Duration) error {
		name := side
		switch {
		case side == writers && n.box != nil:
			name = n.relay().Name()
		case side == writers:
			name = enqueuers
		case side != enqueuers:
			name = n.workers[n.r.IntN(workers)].Name()
		}
		var trap *rig.Trap
		return n.during(ctx, kind, name, d,
			func() error {
				trap = n.proxies[name].DropReplies(rig.Sometimes(0.5, n.r.Uint64(), rig.Script(scripts...)))
				return nil
			},
			func() error { trap.Remove(); return nil })
	}}
}

// writers are those who send the calls of the enqueuers: these themselves, or the relays.
const writers = "writers"

// end ends a worker; its supervisor starts it again.
func (n *nemesis) end(w *rig.Worker, how func() error) error {
	n.mu.Lock()
	n.expected[w.Name()] = true
	n.mu.Unlock()
	return how()
}

// config sets a setting of Redis.
func (n *nemesis) config(name, value string) error {
	return n.direct.ConfigSet(context.Background(), name, value).Err()
}

var faults = []fault{
	onWire("cut", 3, func(_ *nemesis, p *rig.Proxy) { p.Cut() }),
	onWire("reset", 3, func(_ *nemesis, p *rig.Proxy) { p.Reset() }),
	onWire("freeze", 3, func(_ *nemesis, p *rig.Proxy) { p.Freeze() }),
	onWire("strand", 3, func(_ *nemesis, p *rig.Proxy) { p.Strand() }),
	onWire("slow", 2, func(n *nemesis, p *rig.Proxy) { p.Slow(time.Duration(1+n.r.IntN(50)) * time.Millisecond) }),
	onWire("narrow", 3, func(n *nemesis, p *rig.Proxy) {
		p.Narrow(rig.Mbit100/int64(1+n.r.IntN(4)), time.Duration(n.r.IntN(20))*time.Millisecond)
	}),
	dropping("worker", 3, "take"),
	dropping("worker", 3, "ack"),
	dropping("worker", 3, "hand_over", "hand_over_again", "parcel_plan", "parcel_done"),
	dropping("worker", 2, "retry", "snooze", "bury", "give_back"),
	dropping("worker", 2, "extend"),
	dropping("worker", 1, "promote"),
	dropping("worker", 2, "schedule_due", "schedule_fire"),
	dropping(writers, 3, "enqueue"),
	dropping(writers, 2, "replace", "cancel", "reschedule"),
	dropping(enqueuers, 3, "schedule_set", "schedule_remove", "schedule_pause", "schedule_trigger"),
	{"kill", 3, func(_ context.Context, n *nemesis, _ time.Duration) error {
		w := n.worker()
		return n.end(w, w.Kill)
	}},
	{"term", 2, func(_ context.Context, n *nemesis, _ time.Duration) error {
		w := n.worker()
		return n.end(w, func() error { return errors.Join(w.Term(), w.AwaitEnd(drain+10*time.Second)) })
	}},
	{"stop", 3, func(ctx context.Context, n *nemesis, d time.Duration) error {
		w := n.worker()
		if err := w.Stop(); err != nil {
			return err
		}
		n.sleep(ctx, d)
		return w.Cont()
	}},
	{"redis kill", 2, func(ctx context.Context, n *nemesis, d time.Duration) error {
		return n.during(ctx, "redis kill", "", d, n.server.Kill, n.server.Restart)
	}},
	{"redis stop", 2, func(ctx context.Context, n *nemesis, d time.Duration) error {
		return n.during(ctx, "redis stop", "", d, n.server.Stop, n.server.Cont)
	}},
	{"script flush", 2, func(ctx context.Context, n *nemesis, d time.Duration) error {
		return n.during(ctx, "script flush", "", 0, func() error { return n.direct.ScriptFlush(context.Background()).Err() }, func() error { return nil })
	}},
	{"client kill", 2, func(ctx context.Context, n *nemesis, d time.Duration) error {
		return n.during(ctx, "client kill", "", 0,
			func() error {
				return n.direct.ClientKillByFilter(context.Background(), "TYPE", "normal", "SKIPME", "yes").Err()
			},
			func() error {
				return n.direct.ClientKillByFilter(context.Background(), "TYPE", "pubsub", "SKIPME", "yes").Err()
			})
	}},
	{"client pause", 1, func(ctx context.Context, n *nemesis, d time.Duration) error {
		ms := strconv.FormatInt(d.Milliseconds()+1, 10)
		return n.during(ctx, "client pause", "", d,
			func() error { return n.direct.Do(context.Background(), "CLIENT", "PAUSE", ms, "WRITE").Err() }, func() error { return nil })
	}},
	{rig.Damage, 4, func(ctx context.Context, n *nemesis, d time.Duration) error { return n.damage(ctx, d) }},
	{"full", 1, func(ctx context.Context, n *nemesis, d time.Duration) error {
		return n.during(ctx, "full", "", d,
			func() error { return n.config("maxmemory", "1mb") }, func() error { return n.config("maxmemory", "0") })
	}},
}

// relayFaults are those of a run with an outbox, beside the other ones, which hit relays too.
var relayFaults = []fault{
	{"kill relays", 12, func(ctx context.Context, n *nemesis, _ time.Duration) error {
		for range 1 + n.r.IntN(6) {
			w := n.relay()
			if err := n.end(w, w.Kill); err != nil {
				return err
			}
			n.sleep(ctx, time.Duration(n.r.Int64N(int64(rest))))
		}
		return nil
	}},
	{"stop relay", 3, func(ctx context.Context, n *nemesis, d time.Duration) error {
		w := n.relay()
		if err := w.Stop(); err != nil {
			return err
		}
		n.sleep(ctx, d)
		return w.Cont()
	}},
	{"restart relay", 3, func(_ context.Context, n *nemesis, _ time.Duration) error {
		w := n.relay()
		return n.end(w, func() error { return errors.Join(w.Term(), w.AwaitEnd(drain+10*time.Second)) })
	}},
}

// databaseFaults are those of a PostgreSQL, and more of Redis, so that both fall in turn.
var databaseFaults = []fault{
	{"postgres kill", 6, func(ctx context.Context, n *nemesis, d time.Duration) error {
		return n.during(ctx, "postgres kill", "", d, n.db.Kill, n.db.Start)
	}},
	{"postgres stop", 6, func(ctx context.Context, n *nemesis, d time.Duration) error {
		return n.during(ctx, "postgres stop", "", d, n.db.Stop, n.db.Cont)
	}},
	{"postgres restart", 4, func(ctx context.Context, n *nemesis, d time.Duration) error {
		return n.during(ctx, "postgres restart", "", d, n.db.End, n.db.Start)
	}},
	{"redis kill", 4, func(ctx context.Context, n *nemesis, d time.Duration) error {
		return n.during(ctx, "redis kill", "", d, n.server.Kill, n.server.Restart)
	}},
	{"redis stop", 4, func(ctx context.Context, n *nemesis, d time.Duration) error {
		return n.during(ctx, "redis stop", "", d, n.server.Stop, n.server.Cont)
	}},
}

// rest is how long kill relays rests between two kills at most: some relays die while they start,
// and some while they send.
const rest = 800 * time.Millisecond
