package serve

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

const (
	HeartbeatEvery = 5 * time.Second
	HeartbeatStale = 30 * time.Second // after this time without a heartbeat a server is gone
	SweepEvery     = 60 * time.Second // how often a server deletes the entries of gone servers
	longestRuns    = 3                // most jobs in TopicStatus.Longest
	FarewellTime   = 200 * time.Millisecond
)

// heartbeatLoop sends a heartbeat every five seconds and as soon as the drain begins. It also
// deletes the entries of servers that are gone, and closes connections that are no longer needed.
func (s *Server) heartbeatLoop(ctx, fetch context.Context) {
	watch := trouble{name: "heartbeat", log: s.Log, outage: s.outage}
	about := record.Heartbeat{PID: os.Getpid(), Started: s.phase.started, Version: Version(), Partitions: true}
	about.Host, _ = os.Hostname() // if it is unknown, the PID must do
	swept, restored, known, lost := time.Now(), time.Now(), false, false
	draining := fetch.Done()
	for {
		about.State = string(stateRunning)
		if fetch.Err() != nil {
			about.State, draining = string(stateDraining), nil
		}
		looks := s.looks.beat.take()
		now, gone, err := s.heartbeat(ctx, about)
		answer(looks, sight{}) // a failure is in the log
		lost = lost || err == nil && gone && known
		known = known || err == nil
		if err == nil && (lost || time.Since(restored) >= SweepEvery) {
			// If Redis does not answer, the next heartbeat tries again.
			if err = s.restore(ctx, lost); err == nil || !script.Away(err) {
				restored, lost = time.Now(), false
			} else {
				err = nil
			}
		}
		if err == nil && time.Since(swept) >= SweepEvery {
			err = s.sweep(ctx, now)
			swept = time.Now()
		}
		if ctx.Err() == nil {
			watch.note("heartbeat", err)
		}
		s.trim()
		loop.SignOf(ctx).Rest(HeartbeatEvery)
		beat := time.NewTimer(HeartbeatEvery)
		select {
		case <-beat.C:
		case <-s.looks.beat.woken:
			beat.Stop()
		case <-draining: // so that operators see it immediately
			beat.Stop()
		case <-ctx.Done():
			beat.Stop()
			return
		}
		loop.SignOf(ctx).Turn()
	}
}

// heartbeat executes the heartbeat script. It returns Redis's time and reports whether Redis had
// no entry of the server.
func (s *Server) heartbeat(ctx context.Context, about record.Heartbeat) (now int64, gone bool, err error) {
	about.Topics = make(map[string]record.HeartbeatTopic, s.Topics.len())
	for _, t := range s.Topics.all() { // a topic comes before its partitions
		info := t.status(time.Now())
		if of, known := about.Topics[t.called()]; known && t.config.home != nil {
			info = withPart(of, info)
		}
		about.Topics[t.called()] = info
	}
	text, err := about.Encode()
	if err != nil {
		return 0, false, fmt.Errorf("heartbeat: %w", err)
	}
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	r, err := s.Scripts.Call(call, script.Heartbeat, "", 0, []any{script.ServersKey(s.Config.Prefix)}, s.Config.ID, text)
	return r.Now(), r.Number(2) == 1, err
}

// farewell deletes the heartbeat of a server that stops. It first waits for the reply to the last
// heartbeat, which could otherwise arrive after the deletion. If Redis does not answer
// immediately, the entry remains until it is stale.
func (s *Server) farewell(beaten <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), FarewellTime)
	defer cancel()
	select {
	case <-beaten:
	case <-ctx.Done():
	}
	if err := s.Calls.HDel(ctx, script.ServersKey(s.Config.Prefix), s.Config.ID).Err(); err != nil {
		s.Log.Warn("heartbeat not deleted", "err", err)
	}
}

// sweep deletes stale heartbeats.
func (s *Server) sweep(ctx context.Context, now int64) error {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	all, err := script.Heartbeats(call, s.Calls, s.Config.Prefix)
	for id, text := range all {
		if _, at := record.DecodeHeartbeat(text); err == nil && time.UnixMilli(now).Sub(time.UnixMilli(at)) > HeartbeatStale {
			err = s.Calls.HDel(call, script.ServersKey(s.Config.Prefix), id).Err()
		}
	}
	return err
}

// status describes what the server does for the topic.
func (t *Topic) status(now time.Time) record.HeartbeatTopic {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	info := record.HeartbeatTopic{Workers: t.Workers.Count, Batch: t.Workers.PerCall, Running: t.Workers.Busy, Found: t.stay.found, Loops: t.vital.turns.ages(now)}
	if m := t.Workers.Member; m != nil && m.Pool.Name != "" {
		info.Pool, info.Size, info.Weight = m.Pool.Name, m.Pool.Size, t.config.Weight
	}
	if t.Workers.OnDemand && t.Workers.shared != nil {
		info.Workers = t.Workers.shared.Total()
	}
	info.Defaults = record.NewHeartbeatDefaults(&t.config.Defaults)
	info.Taken, info.Within = t.vital.pace.mark(now, t.owned.Added)
	at := t.clock.At(now)
	for r := range t.owned.Running {
		info.Longest = append(info.Longest, record.HeartbeatJob{ID: strings.ToValidUTF8(r.ID, "\uFFFD"), Running: at.Sub(r.Start)})
	}
	slices.SortFunc(info.Longest, func(a, b record.HeartbeatJob) int { return cmp.Compare(b.Running, a.Running) })
	info.Longest = info.Longest[:min(len(info.Longest), longestRuns)]
	return info
}

// withPart adds what the server does for a partition to what it does for its home. They share the
// workers.
func withPart(home, p record.HeartbeatTopic) record.HeartbeatTopic {
	home.Running += p.Running
	home.Taken += p.Taken
	home.Within = max(home.Within, p.Within)
	home.Longest = append(home.Longest, p.Longest...)
	slices.SortFunc(home.Longest, func(a, b record.HeartbeatJob) int { return cmp.Compare(b.Running, a.Running) })
	home.Longest = home.Longest[:min(len(home.Longest), longestRuns)]
	for name, age := range p.Loops {
		home.Loops[name] = max(home.Loops[name], age)
	}
	return home
}

// Version returns the version of delayq in the program.
var Version = sync.OnceValue(func() string {
	const path = "github.com/delayq/delayq"
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Path == path {
			return info.Main.Version
		}
		for _, m := range info.Deps {
			if m.Path == path {
				return m.Version
			}
		}
	}
	return ""
})

// paceTime is the time over which the pace of a server is computed.
const paceTime = time.Minute

// A pace holds how many jobs a server had taken at the heartbeats of the last minute.
type pace struct{ marks []paceMark }

type paceMark struct {
	at    time.Time
	taken int64
}

// mark adds a number of taken jobs. It returns how many of them were taken since the first mark of
// the last minute, and how long ago that is.
func (p *pace) mark(now time.Time, taken int64) (n int64, within time.Duration) {
	p.marks = slices.DeleteFunc(p.marks, func(m paceMark) bool { return now.Sub(m.at) > paceTime })
	p.marks = append(p.marks, paceMark{now, taken})
	return taken - p.marks[0].taken, now.Sub(p.marks[0].at)
}

// turns holds the time of the last turn of each loop.
type turns struct{ last [turnCount]time.Time }

// The loops of a topic.
const (
	TurnPromote = iota
	turnTake
	turnExtend
	turnCount
)

var TurnNames = [turnCount]string{TurnPromote: "promote", turnTake: "take", turnExtend: "extend"}

func (ts *turns) ages(now time.Time) map[string]time.Duration {
	ages := make(map[string]time.Duration)
	for i, at := range ts.last {
		if !at.IsZero() {
			ages[TurnNames[i]] = now.Sub(at)
		}
	}
	return ages
}
