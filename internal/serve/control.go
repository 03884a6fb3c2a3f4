package serve

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/listen"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

// controlLoop listens to the control channel, where scripts publish messages that cannot wait for
// the next tick. A lost message, for example during a reconnect, costs only time: the tick
// promotes and takes, and an extension detects a cancel. The server does not even wait a tick for
// messages that were published before it subscribed. Once it has subscribed, it looks at every
// topic, and at its leases too. Without a Cluster, the server is rung on the same connection.
func (s *Server) controlLoop(ctx context.Context) {
	channels := []string{script.ControlChannel(s.Config.Prefix)}
	if _, cluster := s.Calls.(*redis.ClusterClient); !cluster {
		channels = append(channels, ringChannel(s.Config.Prefix, s.Config.ID))
	}
	s.listenLoop(ctx, "subscribe", s.Calls, channels, func() {
		for _, t := range s.Topics.all() {
			if s.watch.left(t) == 0 {
				t.wake()
			}
			t.resume(false)
			t.doubt()
			t.Loops.parts.due.Store(true)
		}
		s.looks.parts.poke()
		s.lookNow()
	})
}

// ringLoop listens to the channel on which a server is rung at one node of a Cluster. Only then the
// number of listeners that PUBLISH returns there is exact.
func (s *Server) ringLoop(ctx context.Context, n *Node) {
	s.listenLoop(ctx, "subscribe "+n.name, n.client, []string{ringChannel(s.Config.Prefix, n.name)}, s.lookNow)
}

// lookNow makes the watch look at once.
func (s *Server) lookNow() {
	select {
	case s.watch.now <- struct{}{}:
	default: // it is about to
	}
}

// listenLoop listens to channels until ctx is done. It calls subscribed when messages arrive from
// now on.
func (s *Server) listenLoop(ctx context.Context, call string, rdb redis.UniversalClient, channels []string, subscribed func()) {
	var slow loop.Pace
	watch := trouble{name: "control", log: s.Log, outage: s.outage}
	for ctx.Err() == nil {
		began := time.Now()
		err := s.listen(ctx, rdb, channels, subscribed, func() { watch.note(call, nil) })
		if ctx.Err() != nil {
			return
		}
		// Only a lasting subscription resets the pace: one that breaks repeatedly would cost a
		// promote of each topic every time.
		if time.Since(began) > loop.PaceLimit {
			slow.Reset()
		}
		if err != nil {
			watch.note(call, err)
		}
		if script.Code(err) == script.CodeNoPerm && len(channels) > 1 {
			channels = channels[:1] // messages are worth more than rings
		}
		loop.Sleep(ctx, slow.Next())
	}
}

// listen subscribes and dispatches messages until something fails. It calls heard after every
// message from Redis.
func (s *Server) listen(ctx context.Context, rdb redis.UniversalClient, channels []string, subscribed, heard func()) error {
	return listen.Read(ctx, rdb, channels, s.dialTimeout+CallTimeout, func(msg any) {
		heard()
		switch m := msg.(type) {
		case *redis.Message:
			if m.Channel == script.ControlChannel(s.Config.Prefix) {
				s.obey(m.Payload)
			} else if t := s.Topics.Get(m.Payload); t != nil {
				t.ring()
			}
		case *redis.Subscription:
			if m.Count == len(channels) {
				subscribed()
			}
		}
	})
}

// obey carries out a message.
func (s *Server) obey(text string) {
	m, ok := record.DecodeMessage(text)
	t := s.Topics.Get(m.Topic)
	if !ok || t == nil {
		return
	}
	switch m.Verb {
	case "wake":
		t.noteSlotOf(m.Job)
		t.wake()
	case "ring":
		if n := t.node.Load(); n != nil && m.Job == n.name {
			t.ring()
		}
	case "resume":
		t.resume(m.Fence == aPlace)
		if m.Fence != aPlace && t.Loops.parts.have() != nil { // its limits can be others
			t.askParts()
		}
	case "parts":
		t.askParts()
	case "relay":
		t.wakeRelay()
	case "cancel":
		t.cancelRun(m.Job, m.Fence, run.ErrCancelled)
	case "replace":
		t.cancelRun(m.Job, m.Fence, run.ErrReplaced)
	}
}
