package delayq

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/bridge"
	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// rowsFixture sends rows to a topic of its own.
type rowsFixture struct {
	*testing.T
	client *Client
	sealer *Client
	prefix string
}

func eachRows(t *testing.T, test func(f *rowsFixture)) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		prefix := redistest.Prefix(t)
		sealer, err := newSealer(nil)
		require.NoError(t, err)
		test(&rowsFixture{T: t, client: NewClient(rdb, Prefix(prefix)), sealer: sealer, prefix: prefix})
	})
}

func (f *rowsFixture) enqueue(id string, opts ...JobOption) bridge.Row {
	row, _, err := f.sealer.sealEnqueue(f.Context(), NewJob{Topic: "topic", ID: id, Payload: []byte("of " + id), Options: opts})
	require.NoError(f, err)
	return row
}

func (f *rowsFixture) cancel(id string) bridge.Row {
	row, err := f.sealer.sealCancel(f.Context(), "topic", id)
	require.NoError(f, err)
	return row
}

func (f *rowsFixture) reschedule(id string, due DueOption) bridge.Row {
	row, err := f.sealer.sealReschedule(f.Context(), "topic", id, due)
	require.NoError(f, err)
	return row
}

func (f *rowsFixture) send(number uint64, rows ...bridge.Row) []error {
	outcomes, err := f.client.sendRows(f.Context(), bridge.Plan{Series: "box", Number: number}, rows)
	require.NoError(f, err)
	return outcomes
}

func (f *rowsFixture) jobs() []string {
	return f.client.rdb.HKeys(f.Context(), script.NewKeys(f.prefix, "topic").Pool).Val()
}

func TestRowsMakeTheirCallsOnce(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		_, err := f.client.Enqueue(f.Context(), "topic", "there", nil)
		require.NoError(f, err)
		rows := []bridge.Row{
			f.enqueue("a"), f.enqueue("b", ProcessIn(time.Hour)), f.cancel("a"), f.enqueue("a", ProcessIn(time.Hour)),
			f.enqueue("there"), f.cancel("nobody"), f.enqueue("c", ProcessIn(time.Hour), ExpireIn(3*time.Hour)),
			f.reschedule("c", ProcessIn(2*time.Hour)), f.reschedule("b", ProcessIn(time.Minute)), f.reschedule("c", ProcessIn(4*time.Hour)),
			f.enqueue("big", Replace()), f.enqueue("big", Replace(), Header("second", "yes")),
		}
		check := func(outcomes []error) {
			f.Helper()
			for i, err := range outcomes {
				switch i {
				case 4:
					require.ErrorIs(f, err, ErrDuplicate)
				case 5:
					require.ErrorIs(f, err, ErrNotFound)
				case 9:
					require.ErrorIs(f, err, ErrInvalid, "it would expire before it is due")
				default:
					require.NoError(f, err, i)
				}
			}
		}
		check(f.send(7, rows...))
		require.ElementsMatch(f, []string{"a", "b", "c", "there", "big"}, f.jobs())
		again := f.client
		for _, id := range f.jobs() {
			_, err := again.Dequeue(f.Context(), "topic", id)
			require.NoError(f, err)
		}
		// Another relay sends the plan after the jobs have come to their ends.
		f.client = NewClient(again.rdb, Prefix(f.prefix))
		check(f.send(7, rows...))
		require.Empty(f, f.jobs())

		// A plan of a relay that was overtaken does nothing, whatever it holds.
		f.send(8, f.enqueue("next"))
		_, err = f.client.sendRows(f.Context(), bridge.Plan{Series: "box", Number: 7}, rows[:1])
		require.ErrorIs(f, err, bridge.ErrPassed)
		require.Equal(f, []string{"next"}, f.jobs())
	})
}

// A number that the series has passed, or that it has used for another plan, is an error for every
// kind of call, and nothing is done.
func TestRowsWhoseNumberHasPassed(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		for _, id := range []string{"gone", "moved"} {
			_, err := f.client.Enqueue(f.Context(), "topic", id, nil, ProcessIn(time.Hour))
			require.NoError(f, err)
		}
		kinds := map[string]bridge.Row{
			"enqueue": f.enqueue("new"), "keyed": f.enqueue("new", Key("k")), "replace": f.enqueue("moved", Replace()),
			"cancel": f.cancel("gone"), "reschedule": f.reschedule("moved", ProcessIn(2*time.Hour)),
		}
		for tag, other := range map[string]string{"": "", "a": "b"} {
			for name, row := range kinds {
				plan := bridge.Plan{Series: "box " + name, Number: 7, Tag: tag}
				_, err := f.client.sendRows(f.Context(), plan, []bridge.Row{f.cancel("nobody")})
				require.NoError(f, err)
				for _, late := range []bridge.Plan{{Number: 6, Tag: tag}, {Number: 6, Tag: other}, {Number: 7, Tag: other}} {
					if late.Series = plan.Series; late == plan {
						continue
					}
					before := redistest.Dump(f.T, f.client.rdb, f.prefix)
					outcomes, err := f.client.sendRows(f.Context(), late, []bridge.Row{row})
					require.ErrorIs(f, err, bridge.ErrPassed, name)
					require.NotErrorIs(f, err, ErrUnknownOutcome)
					require.Equal(f, []error{bridge.ErrOpen}, outcomes)
					require.Equal(f, before, redistest.Dump(f.T, f.client.rdb, f.prefix))
				}
				// The plan itself is still known.
				outcomes, err := f.client.sendRows(f.Context(), plan, []bridge.Row{f.cancel("moved")})
				require.NoError(f, err)
				require.ErrorIs(f, outcomes[0], ErrNotFound, name)
			}
		}
	})
}

// When a call fails, the outcomes of those before it are returned.
func TestRowsBeforeTheOneThatFails(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		plan := bridge.Plan{Series: "box", Number: 7, Tag: "a"}
		f.client.rdb.Set(f.Context(), script.NewKeys(f.prefix, "topic").Receipt("box.t1.1"), "8:", time.Hour)
		outcomes, err := f.client.sendRows(f.Context(), plan, []bridge.Row{f.enqueue("a"), f.cancel("a"), f.enqueue("b"), f.cancel("c")})
		require.ErrorIs(f, err, bridge.ErrPassed)
		require.Equal(f, []error{nil, bridge.ErrOpen, nil, bridge.ErrOpen}, outcomes)
		require.ElementsMatch(f, []string{"a", "b"}, f.jobs())
	})
}

// The calls of a plan are divided by the number of jobs, by their bytes and by IDs that occur
// twice. If the relay is cut off after each of them in turn, each is still made once.
func TestRowsContinueWhereTheyWereCutOff(t *testing.T) {
	eachRows(t, continueRows)
}

func continueRows(f *rowsFixture) {
	var rows []bridge.Row
	for i := range 600 {
		rows = append(rows, f.enqueue(strconv.Itoa(i)))
	}
	for i := range 3 {
		rows = append(rows, f.cancel(strconv.Itoa(i)))
	}
	for i := range 2 {
		row, _, err := f.sealer.sealEnqueue(f.Context(), NewJob{Topic: "topic", ID: "large" + strconv.Itoa(i), Payload: make([]byte, 1<<20)})
		require.NoError(f, err)
		rows = append(rows, row)
	}
	for cut := 1; ; cut++ {
		calls := 0
		ctx, cancel := context.WithCancel(f.Context())
		hook := afterEachScript(func() {
			if calls++; calls == cut {
				cancel()
			}
		})
		f.client = NewClient(f.client.rdb, Prefix(f.prefix), Hooks(hook))
		_, err := f.client.sendRows(ctx, bridge.Plan{Series: "box", Number: 1}, rows)
		cancel()
		if err == nil {
			require.Greater(f, cut, 4, "the plan took too few calls for this test")
			break
		}
	}
	counters := f.client.rdb.HGetAll(f.Context(), script.NewKeys(f.prefix, "topic").Stats).Val()
	require.Equal(f, map[string]string{"enqueued": "602", "cancelled": "3"}, counters)
	require.Len(f, f.jobs(), 602-3)
}

// afterEachScript returns a hook that calls f after each script.
func afterEachScript(f func()) Hook { return afterScript(f) }

type afterScript func()

func (f afterScript) Script(ScriptEvent) { f() }

func TestRowsKeepTheirReceiptsForAWeek(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		f.send(1, f.enqueue("a"))
		left := f.client.rdb.PTTL(f.Context(), script.NewKeys(f.prefix, "topic").Receipt("box.0.1")).Val()
		require.Greater(f, left, commit.RowsReceipt-time.Minute)
		require.LessOrEqual(f, left, commit.RowsReceipt)
	})
}

// The delay and the expiry count from when the row was made.
func TestRowsGrowOlder(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		aged := func(row bridge.Row, age time.Duration) bridge.Row {
			row.Age = age.Milliseconds()
			return row
		}
		outcomes := f.send(1,
			aged(f.enqueue("hour", ProcessIn(time.Hour)), 10*time.Minute),
			aged(f.enqueue("past", ProcessIn(time.Minute)), 10*time.Minute),
			aged(f.enqueue("expires", ExpireIn(time.Hour)), 10*time.Minute),
			aged(f.enqueue("expired", ExpireIn(time.Minute)), 10*time.Minute),
			aged(f.enqueue("at the end", ExpireIn(time.Minute)), time.Minute),
			f.enqueue("moved"), aged(f.reschedule("moved", ProcessIn(time.Hour)), 20*time.Minute),
		)
		for _, i := range []int{3, 4} {
			require.ErrorIs(f, outcomes[i], ErrInvalid)
			require.ErrorContains(f, outcomes[i], "had expired")
			outcomes[i] = nil
		}
		require.Equal(f, make([]error, 7), outcomes)
		within := func(id string, want time.Duration, of func(*JobInfo) time.Time) {
			info, err := f.client.Get(f.Context(), "topic", id)
			require.NoError(f, err)
			require.Equal(f, want, of(info).Sub(info.EnqueuedAt).Round(time.Minute), id)
		}
		due := func(info *JobInfo) time.Time { return info.Due }
		within("hour", 50*time.Minute, due)
		within("past", 0, due)
		within("moved", 40*time.Minute, due)
		within("expires", 50*time.Minute, func(info *JobInfo) time.Time { return info.ExpireAt })
	})
}

// A sealer refuses what a client refuses, with the same words.
func TestSealersRefuseWhatClientsRefuse(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		done, cancel := context.WithCancel(f.Context())
		cancel()
		for _, job := range []NewJob{
			{Topic: ""}, {Topic: "a{b"}, {Topic: "topic", ID: strings.Repeat("x", script.MaxIDLen+1)},
			{Topic: "topic", Payload: make([]byte, 1<<20+1)},
			{Topic: "topic", Options: []JobOption{ProcessIn(time.Nanosecond)}}, {Topic: "topic", Options: []JobOption{nil}},
			{Topic: "topic", Options: []JobOption{ProcessIn(time.Hour), ExpireIn(time.Minute)}},
		} {
			for _, ctx := range []context.Context{f.Context(), nil} {
				_, want := f.client.Enqueue(ctx, job.Topic, job.ID, job.Payload, job.Options...)
				_, _, err := f.sealer.sealEnqueue(ctx, job)
				require.Error(f, want)
				require.EqualError(f, err, want.Error())
				require.ErrorIs(f, err, ErrInvalid)
			}
		}
		_, _, err := f.sealer.sealEnqueue(done, NewJob{Topic: "topic"})
		require.ErrorIs(f, err, context.Canceled)
		_, err = f.sealer.sealCancel(done, "topic", "id")
		require.ErrorIs(f, err, context.Canceled)
		for _, topic := range []string{"", "a}b"} {
			_, want := f.client.Dequeue(f.Context(), topic, "id")
			_, err := f.sealer.sealCancel(f.Context(), topic, "id")
			require.EqualError(f, err, want.Error())
			for _, due := range []DueOption{nil, ProcessIn(time.Nanosecond), ProcessIn(time.Hour)} {
				want := f.client.Reschedule(f.Context(), topic, "id", due)
				_, err := f.sealer.sealReschedule(f.Context(), topic, "id", due)
				require.EqualError(f, err, want.Error())
			}
		}
	})
}

// A sealed job is stored as the client would have stored it.
func TestSealedJobsAreStoredAsSent(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		for name, opts := range map[string][]JobOption{
			"plain": nil, "later": {ProcessIn(time.Hour)}, "at": {ProcessAt(time.Now().Add(time.Hour))},
			"all": {Retry(3), Backoff(time.Second, time.Minute), Timeout(time.Hour), Retention(time.Hour), Header("k", "v"), ExpireIn(time.Hour)},
		} {
			require.Equal(f, []error{nil}, f.send(uint64(time.Now().UnixNano()), f.enqueue("sealed "+name, opts...)))
			_, err := f.client.Enqueue(f.Context(), "topic", "sent "+name, []byte("of sealed "+name), opts...)
			require.NoError(f, err)
			raw := func(id string) record.Job {
				job, err := record.Decode(f.client.rdb.HGet(f.Context(), script.NewKeys(f.prefix, "topic").Pool, id).Val())
				require.NoError(f, err)
				require.NotZero(f, job.EnqueuedAt)
				job.Nonce, job.EnqueuedAt = "", 0
				return job
			}
			require.Equal(f, raw("sent "+name), raw("sealed "+name))
		}
	})
}
