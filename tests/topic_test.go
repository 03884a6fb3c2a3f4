package tests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

type parcel struct {
	Name   string
	Weight float64
	Sent   time.Time
	Parts  map[string][]int
	Note   *string
}

func somePackage() parcel {
	note := "fragile\x00🐢"
	return parcel{
		Name: "box", Weight: 1.5, Sent: time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC),
		Parts: map[string][]int{"a": {1, -2}, "": nil}, Note: &note,
	}
}

// reversed is a codec of our own: strings, backwards.
type reversed struct{}

func (reversed) Encode(v any) ([]byte, error) { return backwards([]byte(v.(string))), nil }
func (reversed) Decode(payload []byte, v any) error {
	if len(payload) == 0 {
		return errors.New("nothing")
	}
	*v.(*string) = string(backwards(append([]byte(nil), payload...)))
	return nil
}

func backwards(b []byte) []byte {
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return b
}

func roundTrip[T any](t *testing.T, f *queuetest.Fixture, topic *delayq.Topic[T], value T) T {
	t.Helper()
	job, err := topic.Enqueue(t.Context(), f.Client, "", value, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	require.Equal(t, topic.Name(), job.Topic)
	require.Equal(t, time.Hour, job.Due.Sub(job.EnqueuedAt), "the options count")
	info, err := f.Client.Get(t.Context(), topic.Name(), job.ID)
	require.NoError(t, err)
	got, err := topic.Decode(&info.Job)
	require.NoError(t, err)
	return got
}

func TestTypedRoundTrip(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		want := somePackage()
		for name, codec := range map[string]delayq.TopicOption{
			"msgpack": delayq.MsgPack, "json": delayq.JSON, "json again": delayq.WithCodec(delayq.JSON),
		} {
			got := roundTrip(t, f, delayq.NewTopic[parcel](name, codec), want)
			require.True(t, got.Sent.Equal(want.Sent))
			got.Sent = want.Sent
			require.Equal(t, want, got, name)
			require.Equal(t, "", roundTrip(t, f, delayq.NewTopic[string](name, codec), ""))
			require.Equal(t, []byte{0, 0xff}, roundTrip(t, f, delayq.NewTopic[[]byte](name, codec), []byte{0, 0xff}))
			require.Equal(t, -7, roundTrip(t, f, delayq.NewTopic[int](name, codec), -7))
			require.Nil(t, roundTrip(t, f, delayq.NewTopic[*parcel](name, codec), nil))
			require.Equal(t, want.Name, roundTrip(t, f, delayq.NewTopic[*parcel](name, codec), &want).Name)
		}
		require.Equal(t, "hello", roundTrip(t, f, delayq.NewTopic[string]("own", delayq.WithCodec(reversed{})), "hello"))
	})
}

func TestTypedPayloads(t *testing.T) {
	t.Parallel()
	job, err := delayq.NewTopic[parcel]("t", delayq.JSON).Job("x", parcel{Name: "n"}, delayq.Retry(1))
	require.NoError(t, err)
	require.Equal(t, "t", job.Topic)
	require.Equal(t, "x", job.ID)
	require.Len(t, job.Options, 1)
	require.JSONEq(t, `{"Name":"n","Weight":0,"Sent":"0001-01-01T00:00:00Z","Parts":null,"Note":null}`, string(job.Payload))
	job, err = delayq.NewTopic[string]("t").Job("x", "hi")
	require.NoError(t, err)
	require.Equal(t, "\xa2hi", string(job.Payload), "MsgPack is the default")
	job, err = delayq.NewTopic[string]("t", delayq.JSON, delayq.WithCodec(reversed{})).Job("x", "abc")
	require.NoError(t, err)
	require.Equal(t, "cba", string(job.Payload), "the last codec counts")
}

func TestTypedErrors(t *testing.T) {
	t.Parallel()
	_, err := delayq.NewTopic[int]("t").Decode(&delayq.Job{Payload: []byte("\xc1")})
	require.ErrorContains(t, err, "decode int")
	_, err = delayq.NewTopic[string]("t", delayq.WithCodec(reversed{})).Decode(&delayq.Job{})
	require.ErrorContains(t, err, "nothing")
	_, err = delayq.NewTopic[int]("t", delayq.WithCodec(nil)).Decode(&delayq.Job{})
	require.ErrorIs(t, err, delayq.ErrInvalid)
	_, err = delayq.NewTopic[int]("t", nil).Job("x", 1)
	require.ErrorIs(t, err, delayq.ErrInvalid)
	_, err = delayq.NewTopic[chan int]("t").Job("x", make(chan int))
	require.ErrorIs(t, err, delayq.ErrInvalid)
	require.ErrorContains(t, err, "encode chan int")
}

// A handler gets the value. A payload that cannot be decoded is retried, because a server of a
// newer release may run beside this one.
func TestTypedHandlers(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		ctx := t.Context()
		client := delayq.NewClient(rdb)
		topic := delayq.NewTopic[parcel]("parcel")
		server := delayq.NewServer(rdb, delayq.Logger(slog.New(slog.DiscardHandler)))
		var got []string
		topic.Handle(server, func(_ context.Context, job *delayq.Job, p parcel) error {
			got = append(got, fmt.Sprint(job.ID, " ", job.Attempt, " ", p.Name))
			if job.Attempt == 1 {
				return errors.New("try again")
			}
			return nil
		}, delayq.Concurrency(1))
		run, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- server.Run(run) }()
		_, err := topic.Enqueue(ctx, client, "x", somePackage())
		require.NoError(t, err)
		_, err = client.Enqueue(ctx, "parcel", "broken", []byte("\xc1"))
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		stop()
		require.NoError(t, <-ended)
		require.Equal(t, []string{"x 1 box", "x 2 box"}, got)
		info, err := client.Get(ctx, "parcel", "broken")
		require.NoError(t, err)
		require.Equal(t, delayq.StateScheduled, info.State)
		require.Contains(t, info.Errors[0].Message, "decode tests.parcel")
		require.Greater(t, info.Attempt, 1)
		_, err = client.Get(ctx, "parcel", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
	})
}

// A job that this release cannot decode runs when a server of the next one is there. One that no
// release can decode is buried after twelve attempts, or when its retries are used up, and once
// more after a revive.
func TestPayloadsAreDecodedByTheNextRelease(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		older, newer := delayq.NewTopic[int]("a", delayq.JSON), delayq.NewTopic[string]("a", delayq.JSON)
		old := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, older.Handle(s, func(context.Context, *delayq.Job, int) error { return nil }))
		})
		_, err := newer.Enqueue(b.Context(), b.Client, "new", "payload of the next release")
		require.NoError(b, err)
		b.Enqueue("a", "bad") // no JSON
		b.Enqueue("a", "few", delayq.Retry(2))
		b.Pass(10 * time.Minute)
		require.Equal(b, delayq.StateScheduled, b.State("a", "new"))
		require.Equal(b, delayq.StateScheduled, b.State("a", "bad"))
		require.Equal(b, delayq.StateDead, b.State("a", "few"))
		require.Equal(b, 3, b.Get("a", "few").Attempt)
		require.NoError(b, old.Stop())
		var got []string
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, newer.Handle(s, func(_ context.Context, _ *delayq.Job, value string) error {
				got = append(got, value)
				return nil
			}))
		})
		b.Pass(68 * time.Minute * 6 / 5)
		require.Equal(b, []string{"payload of the next release"}, got)
		require.Equal(b, delayq.StateDead, b.State("a", "bad"))
		require.Equal(b, 12, b.Get("a", "bad").Attempt)
		require.NoError(b, b.Client.Revive(b.Context(), "a", "bad"))
		b.Pass(10 * time.Minute)
		require.Equal(b, delayq.StateScheduled, b.State("a", "bad"))
		b.Pass(68 * time.Minute * 6 / 5)
		require.Equal(b, delayq.StateDead, b.State("a", "bad"))
		require.Equal(b, 24, b.Get("a", "bad").Attempt)
	})
}

func TestTypedHandlersThatCannotBe(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		server := delayq.NewServer(rdb)
		delayq.NewTopic[int]("no codec", delayq.WithCodec(nil)).Handle(server, func(context.Context, *delayq.Job, int) error { return nil })
		delayq.NewTopic[int]("no handler").Handle(server, nil)
		delayq.NewTopic[int]("#").Handle(server, func(context.Context, *delayq.Job, int) error { return nil })
		err := server.Run(t.Context())
		require.ErrorIs(t, err, delayq.ErrInvalid)
		for _, part := range []string{`"no codec"`, "nil codec", `"no handler"`, "nil handler", `"#"`} {
			require.ErrorContains(t, err, part)
		}
	})
}
