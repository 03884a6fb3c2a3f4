package tests

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// refused are commands that some managed Redis services do not permit, or do not have. Neither
// clients nor servers need them.
var refused = []string{"info", "config", "client"}

// renamed is a connection on which Redis does not know the commands that are refused.
type renamed struct{ net.Conn }

func (c renamed) Write(p []byte) (int, error) {
	sent := p
	for _, name := range refused {
		for _, name := range []string{name, strings.ToUpper(name)} {
			sent = bytes.ReplaceAll(sent, []byte("\r\n"+name+"\r\n"), []byte("\r\n"+strings.Repeat("x", len(name))+"\r\n"))
		}
	}
	_, err := c.Conn.Write(sent)
	return len(p), err
}

func TestRedisThatRefusesInfoConfigAndClient(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		says    string
		refuses func(t *testing.T, rs *redistest.Server, opt *redis.Options)
	}{
		"no right": {"NOPERM", func(t *testing.T, rs *redistest.Server, opt *redis.Options) {
			rule := []any{"ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all"}
			for _, command := range refused {
				rule = append(rule, "-"+command)
			}
			require.NoError(t, rs.Client(t).Do(t.Context(), rule...).Err())
			opt.Username, opt.Password = "app", "secret"
		}},
		"renamed": {"unknown command", func(_ *testing.T, _ *redistest.Server, opt *redis.Options) {
			opt.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return renamed{conn}, err
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rs := redistest.Start(t, redistest.NoRoles...)
			opt := rs.Options()
			opt.MaintNotificationsConfig = nil // go-redis sends CLIENT of itself
			test.refuses(t, rs, opt)
			rdb := redis.NewClient(opt)
			defer func() { _ = rdb.Close() }()
			for _, command := range [][]any{{"INFO"}, {"CONFIG", "GET", "*"}, {"CLIENT", "ID"}} {
				require.ErrorContains(t, rdb.Do(t.Context(), command...).Err(), test.says)
			}

			ran := make(chan string, 3)
			var log queuetest.Logbook
			server := queuetest.Serve(t, rdb, "delayq", "t", func(_ context.Context, job *delayq.Job) error {
				ran <- job.ID
				return nil
			}, log.To())
			client := delayq.NewClient(rdb)
			insp := delayq.NewInspector(rdb)
			_, err := client.Enqueue(t.Context(), "t", "now", nil)
			require.NoError(t, err)
			require.Equal(t, "now", queuetest.Receive(t, ran))
			_, err = client.Enqueue(t.Context(), "t", "soon", nil, delayq.ProcessIn(50*time.Millisecond))
			require.NoError(t, err)
			require.Equal(t, "soon", queuetest.Receive(t, ran))
			require.NoError(t, client.Schedule(t.Context(), "t", "s", delayq.Every(time.Hour), nil))
			_, err = client.Trigger(t.Context(), "t", "s")
			require.NoError(t, err)
			queuetest.Receive(t, ran)
			_, err = insp.Check(t.Context(), "t")
			require.NoError(t, err)
			require.NoError(t, server.Stop())

			require.Len(t, log.With("level=WARN", "INFO is not permitted", test.says), 1)
			require.Empty(t, log.With("level=ERROR"))
			require.Equal(t, int64(3), queuetest.CounterOf(t, insp, "t", delayq.CounterAcked))
		})
	}
}
