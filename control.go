package delayq

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/record"
)

// controlLoop listens to the control channel, where scripts publish messages that cannot wait for
// the next tick. A lost message, for example during a reconnect, costs only time: the tick
// promotes, and an extension detects a cancel. The loop does not even wait a tick for messages
// that were published before it subscribed. Once it has subscribed, every topic looks for itself,
// and at its leases too.
func (s *Server) controlLoop(ctx context.Context) {
	var slow retryPace
	watch := trouble{name: "control", log: s.log, outage: s.outage}
	for ctx.Err() == nil {
		began := time.Now()
		err := s.listen(ctx, func() { watch.note("subscribe", nil) })
		if ctx.Err() != nil {
			return
		}
		// Only a lasting subscription resets the pace: one that breaks repeatedly would cost a
		// promote of each topic every time.
		if time.Since(began) > paceLimit {
			slow.reset()
		}
		if err != nil {
			watch.note("subscribe", err)
		}
		sleep(ctx, slow.next())
	}
}

// controlSilence is how long the control channel can be silent before the connection is tested.
const controlSilence = 30 * time.Second

// listen subscribes and dispatches messages until something fails. It calls heard after every
// message from Redis.
func (s *Server) listen(ctx context.Context, heard func()) error {
	sub := s.calls.Subscribe(ctx, controlChannel(s.o.prefix))
	// Close ends a pending Receive. Its error is about a connection that is no longer needed.
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() })
	defer func() {
		if stop() {
			_ = sub.Close()
		}
	}()
	asked := false
	var timeout net.Error
	for {
		msg, err := sub.ReceiveTimeout(ctx, controlSilence)
		switch {
		case err == nil:
			asked = false
			heard()
			switch m := msg.(type) {
			case *redis.Message:
				s.obey(m.Payload)
			case *redis.Subscription:
				for _, t := range s.topics {
					signal(t.wakeups.promote)
					signal(t.wakeups.resume)
					signal(t.wakeups.unsure)
				}
			}
		case errors.As(err, &timeout) && timeout.Timeout() && !asked:
			asked = true
			if err := sub.Ping(ctx); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// obey carries out a message.
func (s *Server) obey(text string) {
	m, ok := record.DecodeMessage(text)
	t := s.topics[m.Topic]
	if !ok || t == nil {
		return
	}
	switch m.Verb {
	case "wake":
		signal(t.wakeups.promote)
	case "resume":
		signal(t.wakeups.resume)
	case "cancel":
		t.cancelRun(m.Job, m.Fence, ErrCancelled)
	case "replace":
		t.cancelRun(m.Job, m.Fence, ErrReplaced)
	}
}
