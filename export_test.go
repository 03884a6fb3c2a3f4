package delayq

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// LoadScripts makes Redis know all scripts.
func LoadScripts(ctx context.Context, rdb redis.Scripter) error {
	for _, s := range allScripts {
		if err := rdb.ScriptLoad(ctx, fmt.Sprint(s.text)).Err(); err != nil {
			return err
		}
	}
	return nil
}

// An Outage is an outage for tests.
type Outage struct{ o *outage }

// NewOutage makes one that logs to w and calls lost with every failure.
func NewOutage(w io.Writer, lost func()) Outage {
	return Outage{&outage{log: slog.New(slog.NewTextHandler(w, nil)), lost: func(error) {
		if lost != nil {
			lost()
		}
	}}}
}

// Failed and Ended are its methods.
func (o Outage) Failed(call string, err error) { o.o.failed(call, err) }

func (o Outage) Ended(call string) { o.o.answered(call) }
