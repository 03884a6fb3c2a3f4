package delayq

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// controlLoop listens to the control channel, over which the scripts tell of what cannot wait for the next tick. A message that is lost,
// during a reconnect for example, costs time and nothing else: the tick promotes, and an extension finds out about a cancel. What was said
// before the server listened is not worth a tick either: once it does, every topic looks for itself, at its leases too.
func (s *Server) controlLoop(ctx context.Context) {
	var slow retryPace
	watch := trouble{name: "control", log: s.log, outage: s.outage}
	for ctx.Err() == nil {
		began := time.Now()
		err := s.listen(ctx, func() { watch.note("subscribe", nil) })
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > paceLimit { // one that breaks again and again costs a promote of each topic every time
			slow.reset()
		}
		if err != nil {
			watch.note("subscribe", err)
		}
		sleep(ctx, slow.next())
	}
}

// controlSilence is how long the control channel may be silent before the connection is tried out.
const controlSilence = 30 * time.Second

// listen subscribes and passes messages on until something fails. It calls heard when Redis has said something.
func (s *Server) listen(ctx context.Context, heard func()) error {
	sub := s.calls.Subscribe(ctx, controlChannel(s.o.prefix))
	// Closing is what ends a Receive that waits; its error is that of a connection no longer needed.
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
					signal(t.wake)
					signal(t.resume)
					signal(t.unsure)
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

// obey carries out a message: verb, fence, length of the topic, topic and job ID.
func (s *Server) obey(message string) {
	part := strings.SplitN(message, " ", 4)
	if len(part) != 4 {
		return
	}
	n, err := strconv.Atoi(part[2])
	if err != nil || n < 0 || n > len(part[3]) {
		return
	}
	verb, fence, topic, id := part[0], part[1], part[3][:n], part[3][n:]
	t := s.topics[topic]
	if t == nil {
		return
	}
	switch verb {
	case "wake":
		signal(t.wake)
	case "resume":
		signal(t.resume)
	case "cancel":
		t.cancelRun(id, fence, ErrCancelled)
	case "replace":
		t.cancelRun(id, fence, ErrReplaced)
	}
}
