package tests

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/friend"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// library has what delayq does for its friends.
var library = friend.Of(new(delayq.Client))

// rowsFixture sends rows to a topic of its own.
type rowsFixture struct {
	*testing.T
	client *delayq.Client
	rdb    redis.UniversalClient
	sealer *delayq.Client
	prefix string
}

func eachRows(t *testing.T, test func(f *rowsFixture)) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		prefix := redistest.Prefix(t)
		sealer, err := library.NewSealer(nil)
		require.NoError(t, err)
		test(&rowsFixture{T: t, client: delayq.NewClient(rdb, delayq.Prefix(prefix)), rdb: rdb, sealer: sealer, prefix: prefix})
	})
}

func (f *rowsFixture) enqueue(id string, opts ...delayq.JobOption) commit.Row {
	row, _, err := library.SealEnqueue(f.Context(), f.sealer, delayq.NewJob{Topic: "topic", ID: id, Payload: []byte("of " + id), Options: opts})
	require.NoError(f, err)
	return row
}

func (f *rowsFixture) cancel(id string) commit.Row {
	row, err := library.SealCancel(f.Context(), f.sealer, "topic", id)
	require.NoError(f, err)
	return row
}

func (f *rowsFixture) reschedule(id string, due delayq.DueOption) commit.Row {
	row, err := library.SealReschedule(f.Context(), f.sealer, "topic", id, due)
	require.NoError(f, err)
	return row
}

func (f *rowsFixture) send(number uint64, rows ...commit.Row) []error {
	outcomes, _, err := library.SendRows(f.Context(), f.client, commit.Plan{Series: "box", Number: number}, rows)
	require.NoError(f, err)
	return outcomes
}

func (f *rowsFixture) jobs() []string {
	return f.rdb.HKeys(f.Context(), script.NewKeys(f.prefix, "topic").Pool).Val()
}

func TestRowsMakeTheirCallsOnce(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		_, err := f.client.Enqueue(f.Context(), "topic", "there", nil)
		require.NoError(f, err)
		rows := []commit.Row{
			f.enqueue("a"), f.enqueue("b", delayq.ProcessIn(time.Hour)), f.cancel("a"), f.enqueue("a", delayq.ProcessIn(time.Hour)),
			f.enqueue("there"), f.cancel("nobody"), f.enqueue("c", delayq.ProcessIn(time.Hour), delayq.ExpireIn(3*time.Hour)),
			f.reschedule("c", delayq.ProcessIn(2*time.Hour)), f.reschedule("b", delayq.ProcessIn(time.Minute)), f.reschedule("c", delayq.ProcessIn(4*time.Hour)),
			f.enqueue("big", delayq.Replace()), f.enqueue("big", delayq.Replace(), delayq.Header("second", "yes")),
		}
		check := func(outcomes []error) {
			f.Helper()
			for i, err := range outcomes {
				switch i {
				case 4:
					require.ErrorIs(f, err, delayq.ErrDuplicate)
				case 5:
					require.ErrorIs(f, err, delayq.ErrNotFound)
				case 9:
					require.ErrorIs(f, err, delayq.ErrInvalid, "it would expire before it is due")
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
		f.client = delayq.NewClient(f.rdb, delayq.Prefix(f.prefix))
		check(f.send(7, rows...))
		require.Empty(f, f.jobs())

		// A plan of a relay that was overtaken does nothing, whatever it holds.
		f.send(8, f.enqueue("next"))
		_, _, err = library.SendRows(f.Context(), f.client, commit.Plan{Series: "box", Number: 7}, rows[:1])
		require.ErrorIs(f, err, commit.ErrPassed)
		require.Equal(f, []string{"next"}, f.jobs())
	})
}

// A number that the series has passed, or that it has used for another plan, is an error for every
// kind of call, and nothing is done.
func TestRowsWhoseNumberHasPassed(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		for _, id := range []string{"gone", "moved"} {
			_, err := f.client.Enqueue(f.Context(), "topic", id, nil, delayq.ProcessIn(time.Hour))
			require.NoError(f, err)
		}
		kinds := map[string]commit.Row{
			"enqueue": f.enqueue("new"), "keyed": f.enqueue("new", delayq.Key("k")), "replace": f.enqueue("moved", delayq.Replace()),
			"cancel": f.cancel("gone"), "reschedule": f.reschedule("moved", delayq.ProcessIn(2*time.Hour)),
		}
		for tag, other := range map[string]string{"": "", "a": "b"} {
			for name, row := range kinds {
				plan := commit.Plan{Series: "box " + name, Number: 7, Tag: tag}
				_, _, err := library.SendRows(f.Context(), f.client, plan, []commit.Row{f.cancel("nobody")})
				require.NoError(f, err)
				for _, late := range []commit.Plan{{Number: 6, Tag: tag}, {Number: 6, Tag: other}, {Number: 7, Tag: other}} {
					if late.Series = plan.Series; late == plan {
						continue
					}
					before := redistest.Dump(f.T, f.rdb, f.prefix)
					outcomes, _, err := library.SendRows(f.Context(), f.client, late, []commit.Row{row})
					require.ErrorIs(f, err, commit.ErrPassed, name)
					require.NotErrorIs(f, err, delayq.ErrUnknownOutcome)
					require.Equal(f, []error{commit.ErrOpen}, outcomes)
					require.Equal(f, before, redistest.Dump(f.T, f.rdb, f.prefix))
				}
				// The plan itself is still known.
				outcomes, _, err := library.SendRows(f.Context(), f.client, plan, []commit.Row{f.cancel("moved")})
				require.NoError(f, err)
				require.ErrorIs(f, outcomes[0], delayq.ErrNotFound, name)
			}
		}
	})
}

// When a call fails, the outcomes of those before it are returned.
func TestRowsBeforeTheOneThatFails(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		plan := commit.Plan{Series: "box", Number: 7, Tag: "a"}
		f.rdb.Set(f.Context(), script.NewKeys(f.prefix, "topic").Receipt("box.t1.1"), "8:", time.Hour)
		outcomes, _, err := library.SendRows(f.Context(), f.client, plan, []commit.Row{f.enqueue("a"), f.cancel("a"), f.enqueue("b"), f.cancel("c")})
		require.ErrorIs(f, err, commit.ErrPassed)
		require.Equal(f, []error{nil, commit.ErrOpen, nil, commit.ErrOpen}, outcomes)
		require.ElementsMatch(f, []string{"a", "b"}, f.jobs())
	})
}

// The calls of a plan are divided by the number of jobs, by their bytes and by IDs that occur
// twice. If the relay is cut off after each of them in turn, each is still made once.
func TestRowsContinueWhereTheyWereCutOff(t *testing.T) {
	eachRows(t, continueRows)
}

func continueRows(f *rowsFixture) {
	var rows []commit.Row
	for i := range 600 {
		rows = append(rows, f.enqueue(strconv.Itoa(i)))
	}
	for i := range 3 {
		rows = append(rows, f.cancel(strconv.Itoa(i)))
	}
	for i := range 2 {
		row, _, err := library.SealEnqueue(f.Context(), f.sealer, delayq.NewJob{Topic: "topic", ID: "large" + strconv.Itoa(i), Payload: make([]byte, 1<<20)})
		require.NoError(f, err)
		rows = append(rows, row)
	}
	for cut := 1; ; cut++ {
		calls := 0
		ctx, cancel := context.WithCancel(f.Context())
		hook := queuetest.OnScript(func(delayq.ScriptEvent) {
			if calls++; calls == cut {
				cancel()
			}
		})
		f.client = delayq.NewClient(f.rdb, delayq.Prefix(f.prefix), delayq.Hooks(hook))
		_, _, err := library.SendRows(ctx, f.client, commit.Plan{Series: "box", Number: 1}, rows)
		cancel()
		if err == nil {
			require.Greater(f, cut, 4, "the plan took too few calls for this test")
			break
		}
	}
	counters := f.rdb.HGetAll(f.Context(), script.NewKeys(f.prefix, "topic").Stats).Val()
	require.Equal(f, map[string]string{"enqueued": "602", "cancelled": "3"}, counters)
	require.Len(f, f.jobs(), 602-3)
}

func TestRowsKeepTheirReceiptsForAWeek(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		f.send(1, f.enqueue("a"))
		left := f.rdb.PTTL(f.Context(), script.NewKeys(f.prefix, "topic").Receipt("box.0.1")).Val()
		require.Greater(f, left, commit.RowsReceipt-time.Minute)
		require.LessOrEqual(f, left, commit.RowsReceipt)
	})
}

// A plan that is sent again renews its receipts.
func TestRowsThatAreSentAgainKeepTheirReceiptsForAWeek(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		rows := []commit.Row{f.enqueue("a"), f.cancel("a")}
		f.send(1, rows...)
		for i := range rows {
			receipt := script.NewKeys(f.prefix, "topic").Receipt("box." + strconv.Itoa(i) + ".1")
			require.NoError(f, f.rdb.PExpire(f.Context(), receipt, time.Hour).Err())
			f.send(1, rows...)
			left := f.rdb.PTTL(f.Context(), receipt).Val()
			require.Greater(f, left, commit.RowsReceipt-time.Minute)
			require.LessOrEqual(f, left, commit.RowsReceipt)
		}
		require.Equal(f, "1", f.rdb.HGet(f.Context(), script.NewKeys(f.prefix, "topic").Stats, "enqueued").Val())
	})
}

// If Redis refuses to renew the receipt of a call, replicas cannot confirm the call, and nobody is
// told that they have. A full Redis does not refuse it.
func TestRowsWhoseReceiptIsNotRenewed(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, redistest.NoRoles...).Client(t)
	if redistest.Major(t) < 7 {
		t.Skip("Redis asks for replicas in scripts from 7.0 on")
	}
	sealer, err := library.NewSealer([]delayq.ClientOption(nil))
	require.NoError(t, err)
	f := &rowsFixture{T: t, client: delayq.NewClient(rdb), rdb: rdb, sealer: sealer, prefix: "delayq"}
	set := func(name, value string) { require.NoError(t, rdb.ConfigSet(t.Context(), name, value).Err()) }
	for name, row := range map[string]commit.Row{"enqueue": f.enqueue("a"), "keyed": f.enqueue("k", delayq.Key("k")), "replace": f.enqueue("a", delayq.Replace()), "cancel": f.cancel("a"), "reschedule": f.reschedule("a", delayq.ProcessIn(time.Hour))} {
		plan := commit.Plan{Series: name, Number: 7, Tag: "a"}
		send := func() ([]error, error) {
			outcomes, lost, err := library.SendRows(t.Context(), f.client, plan, []commit.Row{row})
			require.Empty(t, lost)
			return outcomes, err
		}
		first, err := send()
		require.NoError(t, err)
		before := redistest.Dump(t, rdb, "delayq")
		set("min-replicas-to-write", "1")
		outcomes, err := send()
		require.ErrorIs(t, err, delayq.ErrNotReplicated, name)
		require.ErrorContains(t, err, "NOREPLICAS")
		require.Equal(t, commit.FateAway, commit.FateOf(err))
		require.Equal(t, []error{commit.ErrOpen}, outcomes)
		set("min-replicas-to-write", "0")
		set("maxmemory", "1")
		outcomes, err = send()
		require.NoError(t, err, name)
		require.Equal(t, first, outcomes)
		set("maxmemory", "0")
		require.Equal(t, before, redistest.Dump(t, rdb, "delayq"))
	}
}

// All calls of a plan wait for replicas, those that store no job too.
func TestRowsWaitForReplicas(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Shared(t), redistest.Prefix(t)
	sealer, err := library.NewSealer([]delayq.ClientOption(nil))
	require.NoError(t, err)
	f := &rowsFixture{T: t, rdb: rdb, sealer: sealer, prefix: prefix, client: delayq.NewClient(rdb, delayq.Prefix(prefix), delayq.WaitReplicas(1, time.Millisecond))}
	for name, row := range map[string]commit.Row{"enqueue": f.enqueue("a"), "cancel": f.cancel("a"), "reschedule": f.reschedule("a", delayq.ProcessIn(time.Hour))} {
		outcomes, lost, err := library.SendRows(t.Context(), f.client, commit.Plan{Series: name, Number: 7, Tag: "a"}, []commit.Row{row})
		require.ErrorIs(t, err, delayq.ErrNotReplicated, name)
		require.Equal(t, []error{commit.ErrOpen}, outcomes)
		require.Empty(t, lost, "Redis has carried it out")
	}
}

// The second call for rows of one group has a name of its own, so that those of the groups after it
// do not depend on what the replies have left.
func TestCallsOfGroupsHaveTheirNames(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		rows := []commit.Row{
			f.enqueue("a", delayq.ProcessIn(time.Hour), delayq.ExpireIn(3*time.Hour)), f.reschedule("a", delayq.ProcessIn(2*time.Hour)), f.cancel("b"),
		}
		_, _, err := library.SendRows(f.Context(), f.client, commit.Plan{Series: "box", Number: 7, Tag: "a"}, rows)
		require.NoError(f, err)
		for i, name := range []string{"t0", "t1", "t1r1", "t2"} {
			key := script.NewKeys(f.prefix, "topic").Receipt("box." + name + ".1")
			require.Contains(f, f.rdb.Get(f.Context(), key).Val(), "7/a:", "call %d", i)
		}
	})
}

// The delay and the expiry count from when the row was made.
func TestRowsGrowOlder(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		aged := func(row commit.Row, age time.Duration) commit.Row {
			row.Age = age.Milliseconds()
			return row
		}
		outcomes := f.send(1,
			aged(f.enqueue("hour", delayq.ProcessIn(time.Hour)), 10*time.Minute),
			aged(f.enqueue("past", delayq.ProcessIn(time.Minute)), 10*time.Minute),
			aged(f.enqueue("expires", delayq.ExpireIn(time.Hour)), 10*time.Minute),
			aged(f.enqueue("expired", delayq.ExpireIn(time.Minute)), 10*time.Minute),
			aged(f.enqueue("at the end", delayq.ExpireIn(time.Minute)), time.Minute),
			f.enqueue("moved"), aged(f.reschedule("moved", delayq.ProcessIn(time.Hour)), 20*time.Minute),
		)
		for _, i := range []int{3, 4} {
			require.ErrorIs(f, outcomes[i], delayq.ErrInvalid)
			require.ErrorContains(f, outcomes[i], "had expired")
			outcomes[i] = nil
		}
		require.Equal(f, make([]error, 7), outcomes)
		within := func(id string, want time.Duration, of func(*delayq.JobInfo) time.Time) {
			info, err := f.client.Get(f.Context(), "topic", id)
			require.NoError(f, err)
			require.Equal(f, want, of(info).Sub(info.EnqueuedAt).Round(time.Minute), id)
		}
		due := func(info *delayq.JobInfo) time.Time { return info.Due }
		within("hour", 50*time.Minute, due)
		within("past", 0, due)
		within("moved", 40*time.Minute, due)
		within("expires", 50*time.Minute, func(info *delayq.JobInfo) time.Time { return info.ExpireAt })
	})
}

// A sealer refuses what a client refuses, with the same words.
func TestSealersRefuseWhatClientsRefuse(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		done, cancel := context.WithCancel(f.Context())
		cancel()
		for _, job := range []delayq.NewJob{
			{Topic: ""}, {Topic: "a{b"}, {Topic: "topic", ID: strings.Repeat("x", script.MaxIDLen+1)},
			{Topic: "topic", Payload: make([]byte, 1<<20+1)},
			{Topic: "topic", Options: []delayq.JobOption{delayq.ProcessIn(time.Nanosecond)}}, {Topic: "topic", Options: []delayq.JobOption{nil}},
			{Topic: "topic", Options: []delayq.JobOption{delayq.ProcessIn(time.Hour), delayq.ExpireIn(time.Minute)}},
		} {
			for _, ctx := range []context.Context{f.Context(), nil} {
				_, want := f.client.Enqueue(ctx, job.Topic, job.ID, job.Payload, job.Options...)
				_, _, err := library.SealEnqueue(ctx, f.sealer, job)
				require.Error(f, want)
				require.EqualError(f, err, want.Error())
				require.ErrorIs(f, err, delayq.ErrInvalid)
			}
		}
		_, _, err := library.SealEnqueue(done, f.sealer, delayq.NewJob{Topic: "topic"})
		require.ErrorIs(f, err, context.Canceled)
		_, err = library.SealCancel(done, f.sealer, "topic", "id")
		require.ErrorIs(f, err, context.Canceled)
		for _, topic := range []string{"", "a}b"} {
			_, want := f.client.Dequeue(f.Context(), topic, "id")
			_, err := library.SealCancel(f.Context(), f.sealer, topic, "id")
			require.EqualError(f, err, want.Error())
			for _, due := range []delayq.DueOption{nil, delayq.ProcessIn(time.Nanosecond), delayq.ProcessIn(time.Hour)} {
				want := f.client.Reschedule(f.Context(), topic, "id", due)
				_, err := library.SealReschedule(f.Context(), f.sealer, topic, "id", due)
				require.EqualError(f, err, want.Error())
			}
		}
	})
}

// A sealed job is stored as the client would have stored it.
func TestSealedJobsAreStoredAsSent(t *testing.T) {
	eachRows(t, func(f *rowsFixture) {
		for name, opts := range map[string][]delayq.JobOption{
			"plain": nil, "later": {delayq.ProcessIn(time.Hour)}, "at": {delayq.ProcessAt(time.Now().Add(time.Hour))},
			"all": {delayq.Retry(3), delayq.Backoff(time.Second, time.Minute), delayq.Timeout(time.Hour), delayq.Retention(time.Hour), delayq.Header("k", "v"), delayq.ExpireIn(time.Hour)},
		} {
			require.Equal(f, []error{nil}, f.send(uint64(time.Now().UnixNano()), f.enqueue("sealed "+name, opts...)))
			_, err := f.client.Enqueue(f.Context(), "topic", "sent "+name, []byte("of sealed "+name), opts...)
			require.NoError(f, err)
			raw := func(id string) record.Job {
				job, err := record.Decode(f.rdb.HGet(f.Context(), script.NewKeys(f.prefix, "topic").Pool, id).Val())
				require.NoError(f, err)
				require.NotZero(f, job.EnqueuedAt)
				job.Nonce, job.EnqueuedAt = "", 0
				return job
			}
			require.Equal(f, raw("sent "+name), raw("sealed "+name))
		}
	})
}
