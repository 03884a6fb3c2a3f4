package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/commit"
)

// A row is dead for a refused topic if both have been there for longer than an hour, and Redis has
// refused it. Otherwise it stays.
func TestRowsOfARefusedTopicAreDeadWhenBothAreOld(t *testing.T) {
	const hour = time.Hour
	for _, fate := range []commit.Fate{commit.FateAway, commit.FateRefused, commit.FateFull} {
		for _, since := range []time.Duration{0, hour - time.Minute, hour + time.Minute} {
			for _, waited := range []time.Duration{0, 2 * time.Minute} {
				h := &holding{Relay: &Relay{o: relayOptions{patience: hour, logger: slog.New(slog.DiscardHandler)}}}
				if since > 0 {
					h.aside = map[string]*parking{"topic": {since: time.Now().Add(-since)}}
				}
				ages := []time.Duration{0, hour - time.Minute, hour, hour + 1*time.Millisecond, 3 * hour}
				d := &delivery{topic: "topic", err: errors.New("NOPERM"), fate: fate}
				for i, age := range ages {
					h.plan = append(h.plan, stored{seq: int64(i), Row: commit.Row{Kind: commit.RowEnqueue, Topic: "topic", Age: age.Milliseconds()}})
					d.rows, d.outcomes = append(d.rows, i), append(d.outcomes, commit.ErrOpen)
				}
				end := &ending{open: make(map[int]bool)}
				h.end(end, d, waited.Milliseconds())
				dead := make(map[int64]bool)
				for _, row := range end.refused {
					dead[row.seq] = true
				}
				for i, age := range ages {
					want := fate == commit.FateRefused && since > hour && age+waited > hour
					require.Equal(t, want, dead[int64(i)], "fate %v, refused for %v, row of %v + %v", fate, since, age, waited)
					require.Equal(t, !want, end.open[i])
				}
			}
		}
	}
}

// A topic is set aside for twice as long each time, up to a bound, until it has worked again.
func TestTopicsAreSetAsideForLongerEachTime(t *testing.T) {
	h := &holding{Relay: &Relay{o: relayOptions{logger: slog.New(slog.DiscardHandler)}}}
	for range 2 {
		for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
			before := time.Now()
			h.setAside("topic", errors.New("NOPERM"), false)
			require.WithinRange(t, h.aside["topic"].until, before.Add(want*time.Second), time.Now().Add(want*time.Second))
			require.Equal(t, []string{"topic"}, h.waiting())
		}
		h.skip = []string{"topic"}
		h.resume("topic") // a cancel of it has passed
		require.NotNil(t, h.aside["topic"])
		h.skip = nil
		h.resume("topic")
		require.Nil(t, h.aside["topic"])
	}
}

// A relay for which Redis has done something keeps its shard, also while Redis has no memory, or
// says that a plan comes late. One that Redis only refuses, or does not answer, gives it up.
func TestRelayIsProvenByWhatRedisDoes(t *testing.T) {
	failed := errors.New("as the fate says")
	for fate, want := range map[commit.Fate]bool{commit.FateAway: false, commit.FateRefused: false, commit.FateFull: true, commit.FatePassed: true} {
		for _, proven := range []bool{false, true} {
			for _, err := range []error{nil, failed} {
				h := &holding{Relay: &Relay{o: relayOptions{logger: slog.New(slog.DiscardHandler)}}, proven: proven, failures: 1, refused: failed}
				h.plan = []stored{{Row: commit.Row{Kind: commit.RowEnqueue, Topic: "topic"}}}
				_, _ = h.judge([]*delivery{{topic: "topic", rows: []int{0}, outcomes: []error{commit.ErrOpen}, err: err, fate: fate}}, 0)
				works := want || err == nil
				require.Equal(t, works || proven, h.proven, "fate %v, error %v", fate, err)
				require.Equal(t, works, h.failures == 0 && h.refused == nil, "fate %v, error %v", fate, err)
			}
		}
	}
}

// A lossy hook is a Redis that is away, or that does not answer about a topic.
type lossy struct {
	away bool
	lost string // part of the keys of the topic
}

func (l *lossy) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *lossy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *lossy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := errors.New("i/o timeout")
		switch {
		case l.away, l.lost != "" && strings.Contains(fmt.Sprint(cmd.Args()...), l.lost):
		default:
			return next(ctx, cmd)
		}
		cmd.SetErr(err)
		return err
	}
}

// While all of Redis is away, no plan ends, although other topics of it had answers before that, or
// its topic had been set aside. The call without an answer was carried out, and makes one job.
func TestNoPlanEndsWhileRedisIsAway(t *testing.T) {
	for name, others := range map[string][]string{"others had answers": {"other"}, "it was set aside": nil} {
		t.Run(name, func(t *testing.T) {
			h, rdb := newHolding(t, Logger(slog.New(slog.DiscardHandler)))
			wire := new(lossy)
			behind := redis.NewClient(rdb.Options())
			defer func() { require.NoError(t, behind.Close()) }()
			behind.AddHook(wire)
			h.client = delayq.NewClient(behind)
			for _, topic := range append(others, "lost") {
				_, err := h.box.Enqueue(t.Context(), Autocommit(h.db), topic, "id", nil, delayq.ProcessIn(time.Hour))
				require.NoError(t, err)
			}
			require.NoError(t, h.next(t.Context(), new(ending)))
			require.Len(t, h.plan, 1+len(others))
			require.NoError(t, h.sendBy(t, rdb))
			if others == nil {
				h.aside = map[string]*parking{"lost": {since: time.Now()}}
			} else {
				wire.lost = "{lost}"
				_, err := h.send(t.Context())
				require.Error(t, err)
				require.False(t, h.stuck.IsZero())
			}
			wire.away = true
			for range 3 {
				if !h.stuck.IsZero() {
					h.stuck = time.Now().Add(-time.Hour)
				}
				end, err := h.send(t.Context())
				require.ErrorContains(t, err, "i/o timeout")
				require.Nil(t, end)
				require.True(t, h.stuck.IsZero(), "the time counts when Redis answers")
			}
			wire.away, wire.lost = false, ""
			_, err := delayq.NewClient(rdb).Dequeue(t.Context(), "lost", "id") // it ends before the plan goes on
			require.NoError(t, err)
			end, err := h.send(t.Context())
			require.NoError(t, err)
			require.Empty(t, end.open)
			require.Empty(t, end.refused)
			require.Zero(t, rdb.HLen(t.Context(), "delayq:{lost}:pool").Val(), "it was made again")
		})
	}
}

// sendBy carries the plan of a holding out, so that nobody hears of it.
func (h *holding) sendBy(t *testing.T, rdb *redis.Client) error {
	other := &holding{Relay: h.Relay, number: h.number, name: h.name, seal: h.seal, plan: h.plan, since: h.since, till: time.Now().Add(time.Hour)}
	own := h.client
	defer func() { h.client = own }()
	h.client = delayq.NewClient(rdb)
	_, err := other.send(t.Context())
	return err
}

// A resend divides the rows of a plan as they were sent: each start of a flow alone, and no job of
// a key before an earlier one that is left for another call.
func TestFlowsAreDividedAsTheyWereSent(t *testing.T) {
	sealer, err := library.NewSealer(nil)
	require.NoError(t, err)
	seal := func(id string, opts ...delayq.JobOption) *kept {
		f := delayq.NewFlow("topic", id, nil, opts...).Deadline(time.Hour)
		f.Add("step", nil)
		row, _, err := library.SealFlow(t.Context(), sealer, f)
		require.NoError(t, err)
		return &kept{stored: stored{Row: row, size: int64(len(row.Record))}}
	}
	enqueue := func(id string, opts ...delayq.JobOption) *kept {
		row, _, err := library.SealEnqueue(t.Context(), sealer, delayq.NewJob{Topic: "topic", ID: id, Options: opts})
		require.NoError(t, err)
		return &kept{stored: stored{Row: row, size: int64(len(row.Record))}}
	}
	a, b, keyed := seal("a", delayq.Key("k")), seal("b"), seal("c", delayq.Key("k"))
	one, two := enqueue("1"), enqueue("2", delayq.Key("k"))
	require.Equal(t, [][]*kept{{a}, {b}, {one}, {keyed}, {two}}, divide([]*kept{a, b, one, keyed, two}, true))
}
