package tests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// The secrets of a queue: what must be in no error and in no line of a log.
const (
	secretPayload  = "PAYLOAD-4417-1234-5678"
	secretHeader   = "HEADER-bearer-token"
	secretPassword = "PASSWORD-hunter2"
)

// secretless tells which of the secrets is in a text.
func secretless(t *testing.T, text string) {
	t.Helper()
	for _, secret := range []string{secretPayload, secretHeader, secretPassword} {
		for n := 8; n <= len(secret); n++ { // parts of it are secret as well
			require.NotContains(t, text, secret[len(secret)-n:])
			require.NotContains(t, text, secret[:n])
		}
	}
}

// Every kind of error is made to happen, with a log that leaves nothing out.
func TestNoSecretIsLoggedOrReturned(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t, redistest.NoRoles...)
	admin := rs.Client(t)
	ctx := t.Context()
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "app", "on", ">"+secretPassword, "~*", "&*", "+@all", "-sadd").Err())
	opt := rs.Options()
	opt.Username, opt.Password, opt.MaxRetries = "app", secretPassword, -1
	rdb := redis.NewClient(opt)
	defer func() { _ = rdb.Close() }()

	var log queuetest.Logbook
	logger := delayq.Logger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true})))
	var happened queuetest.HookLog
	client := delayq.NewClient(rdb, delayq.MaxPayload(1000))
	stores := delayq.NewClient(admin) // nothing is stored without the right to SADD
	enqueue := func(id string, opts ...delayq.JobOption) {
		t.Helper()
		opts = append(opts, delayq.Header("token", secretHeader), delayq.Backoff(time.Millisecond, time.Millisecond))
		_, err := stores.Enqueue(ctx, "t", id, []byte(secretPayload), opts...)
		require.NoError(t, err)
	}
	var failures []error
	fails := func(err error) {
		t.Helper()
		require.Error(t, err)
		failures = append(failures, err)
	}

	for _, id := range []string{"error", "permanent", "panic", "goexit", "wrapped"} {
		enqueue(id, delayq.Retry(0))
	}
	enqueue("timeout", delayq.Retry(0), delayq.Timeout(time.Millisecond))
	enqueue("snooze")
	enqueue("expired", delayq.ExpireIn(time.Millisecond))
	enqueue("lease")
	enqueue("cancelled")
	for id, from := range map[string]int{"undecodable": 9, "no-stamp": 12, "no-tail": 25, "no-headers": 40} {
		enqueue(id, delayq.ProcessIn(time.Hour))
		record, err := admin.HGet(ctx, "delayq:{t}:pool", id).Result()
		require.NoError(t, err)
		require.NoError(t, admin.HSet(ctx, "delayq:{t}:pool", id, record[:from]+strings.Repeat(secretPayload, 5)).Err())
		require.NoError(t, client.Reschedule(ctx, "t", id, delayq.ProcessIn(0)))
	}
	enqueue("newer", delayq.ProcessIn(time.Hour))
	require.NoError(t, admin.HSet(ctx, "delayq:{t}:pool", "newer", "12345678\x63"+strings.Repeat(secretPayload, 5)).Err())
	require.NoError(t, client.Reschedule(ctx, "t", "newer", delayq.ProcessIn(0)))

	slept := make(chan struct{}, 100)
	server := queuetest.Serve(t, rdb, "delayq", "t", func(ctx context.Context, job *delayq.Job) error {
		switch job.ID {
		case "error":
			return errors.New("no")
		case "wrapped":
			return fmt.Errorf("no: %w", context.Canceled)
		case "permanent":
			return delayq.Permanent(errors.New("never"))
		case "panic":
			panic("a handler's panic")
		case "goexit":
			runtime.Goexit()
		case "timeout", "cancelled":
			<-ctx.Done()
			return ctx.Err()
		case "lease":
			if len(happened.Of("Started", "lease")) == 1 {
				<-ctx.Done()
			}
		case "snooze":
			select {
			case slept <- struct{}{}:
				return delayq.Snooze(time.Millisecond)
			default:
			}
		}
		return nil
	}, logger, delayq.Hooks(&happened, panics{}), delayq.Lease(300*time.Millisecond), delayq.Tick(10*time.Millisecond))
	queuetest.Until(t, func() bool {
		return len(happened.Of("Started", "lease")) == 1 && len(happened.Of("Started", "cancelled")) == 1
	})
	require.NoError(t, admin.Del(ctx, "delayq:{t}:leases").Err())
	queuetest.Until(t, func() bool { return len(happened.Of("LeaseLost", "lease")) > 0 })
	report, err := client.Repair(ctx, "t")
	require.NoError(t, err)
	secretless(t, fmt.Sprintf("%+v", report))
	queuetest.Until(t, func() bool { return len(happened.Of("Started", "cancelled")) > 1 })
	_, err = client.Dequeue(ctx, "t", "cancelled")
	require.NoError(t, err)
	for kind, ids := range map[string][]string{
		"Buried":    {"error", "permanent", "panic", "goexit", "wrapped", "timeout", "undecodable", "no-stamp", "no-tail", "no-headers"},
		"Snoozed":   {"snooze", "newer"},
		"Expired":   {"expired"},
		"Done":      {"lease"},
		"Cancelled": {"cancelled"},
	} {
		for _, id := range ids {
			queuetest.Until(t, func() bool { return len(happened.Of(kind, id)) > 0 }, kind, id)
			for _, e := range happened.Of(kind, id) {
				if e.Err != nil {
					secretless(t, e.Err.Error())
				}
			}
		}
	}

	// Errors of a client.
	_, err = stores.Enqueue(ctx, "t", "error", []byte(secretPayload))
	fails(err)
	require.ErrorIs(t, err, delayq.ErrDuplicate)
	_, err = client.Enqueue(ctx, "t", "unnamed", []byte(secretPayload))
	fails(err)
	require.ErrorContains(t, err, "NOPERM")
	_, err = client.Enqueue(ctx, "t", "large", []byte(strings.Repeat(secretPayload, 100)))
	fails(err)
	_, err = client.Enqueue(ctx, "t", "headers", []byte(secretPayload), delayq.Header("h", strings.Repeat(secretHeader, 2000)))
	fails(err)
	_, err = client.Enqueue(ctx, "{", "topic", []byte(secretPayload))
	fails(err)
	_, err = client.EnqueueBatch(ctx, []delayq.NewJob{{Topic: "t", ID: "error", Payload: []byte(secretPayload)}, {Payload: []byte(secretPayload)}})
	fails(err)
	info, err := client.Get(ctx, "t", "no-stamp")
	require.NoError(t, err)
	fails(info.Undecodable)
	for _, e := range info.Errors {
		secretless(t, e.Message+e.Stack)
	}
	require.NoError(t, admin.Set(ctx, "delayq:{w}:pool", secretPayload, 0).Err())
	_, err = client.Enqueue(ctx, "w", "", []byte(secretPayload))
	fails(err)
	for _, right := range []string{"-hset", "-evalsha", "resetkeys"} {
		require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "app", right).Err())
		_, err = client.Enqueue(ctx, "t", "", []byte(secretPayload))
		fails(err)
	}
	queuetest.Until(t, func() bool { return len(log.With("NOPERM")) > 0 })
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "app", "allkeys", "+@all", "resetpass", ">other-"+secretPassword).Err())
	stranger := redis.NewClient(opt)
	defer func() { _ = stranger.Close() }()
	_, err = delayq.NewClient(stranger).Enqueue(ctx, "t", "", []byte(secretPayload))
	fails(err)
	require.ErrorContains(t, err, "WRONGPASS")

	// Redis is away, by a cut and before an answer.
	require.NoError(t, rs.Kill())
	_, err = client.Enqueue(ctx, "t", "", []byte(secretPayload))
	fails(err)
	queuetest.Until(t, func() bool { return len(log.With("redis away")) > 0 })
	broken := *opt
	broken.Dialer = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no route") }
	nowhere := redis.NewClient(&broken)
	defer func() { _ = nowhere.Close() }()
	_, err = delayq.NewClient(nowhere).Enqueue(ctx, "t", "", []byte(secretPayload))
	fails(err)
	require.NoError(t, server.Stop())

	for _, err := range failures {
		secretless(t, err.Error())
	}
	require.NotEmpty(t, log.With(`msg="job buried"`))
	require.NotEmpty(t, log.With(`msg="hook crashed"`))
	require.NotEmpty(t, log.With(`msg="server draining"`))
	secretless(t, strings.Join(log.With(""), "\n"))
}

// panics is a hook that fails.
type panics struct{}

func (panics) Done(delayq.RunEvent) { panic("a hook's panic") }
