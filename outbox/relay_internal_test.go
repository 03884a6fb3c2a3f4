package outbox

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
)

// newHolding returns a holding of a new SQLite that has acquired its shard.
func newHolding(t *testing.T, opts ...RelayOption) (*holding, *redis.Client) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "box")+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	ob, err := New(SQLite)
	require.NoError(t, err)
	require.NoError(t, ob.Migrate(t.Context(), db))
	r := embedded.New()
	t.Cleanup(r.Close)
	rdb := r.Client()
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	h := &holding{Relay: ob.Relay(db, delayq.NewClient(rdb), opts...)}
	require.NoError(t, h.err)
	held, _, err := h.acquire(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	return h, rdb
}

func (h *holding) enqueue(t *testing.T, id string, size int, opts ...delayq.JobOption) {
	t.Helper()
	_, err := h.box.Enqueue(t.Context(), Autocommit(h.db), "topic", id, []byte(strings.Repeat("x", size)), opts...)
	require.NoError(t, err)
}

// The delay of a job counts from its row while Redis is away in the middle of its plan.
func TestDelaysGoOnWhileRedisIsAway(t *testing.T) {
	h, rdb := newHolding(t)
	h.enqueue(t, "a", 1, delayq.ProcessIn(3*time.Hour))
	require.NoError(t, h.next(t.Context(), new(ending)))
	require.Len(t, h.plan, 1)
	h.since = h.since.Add(-2 * time.Hour) // of an outage
	_, err := h.send(t.Context())
	require.NoError(t, err)
	info, err := delayq.NewClient(rdb).Get(t.Context(), "topic", "a")
	require.NoError(t, err)
	require.Less(t, info.Due.Sub(info.EnqueuedAt), time.Hour+time.Millisecond)
}

// A row can be made after the time of the plan was read, and before the rows are.
func TestDelayOfARowThatIsYoungerThanItsPlan(t *testing.T) {
	h, rdb := newHolding(t)
	h.enqueue(t, "a", 1, delayq.ProcessIn(3*time.Hour))
	_, err := h.db.Exec("UPDATE delayq_outbox SET made = made + 7200000")
	require.NoError(t, err)
	require.NoError(t, h.next(t.Context(), new(ending)))
	h.since = h.since.Add(-time.Hour)
	_, err = h.send(t.Context())
	require.NoError(t, err)
	info, err := delayq.NewClient(rdb).Get(t.Context(), "topic", "a")
	require.NoError(t, err)
	require.Equal(t, 3*time.Hour, info.Due.Sub(info.EnqueuedAt), "an hour after the plan it is an hour too young")
}

// A plan has as many of the rows that were read as its bounds allow, in their order.
func TestPlansOfRowsThatWereReadAhead(t *testing.T) {
	h, _ := newHolding(t, Batch(10))
	for i := range 95 {
		h.enqueue(t, strconv.Itoa(i), 1)
	}
	for i := range 5 { // of 1 MiB, so not all of them are in a plan
		h.enqueue(t, strconv.Itoa(95+i), 1<<20)
	}
	h.enqueue(t, "100", 1)
	var got, most int
	require.NoError(t, h.next(t.Context(), new(ending)))
	for ; len(h.plan) > 0; require.NoError(t, h.next(t.Context(), new(ending))) {
		require.LessOrEqual(t, len(h.plan), 10)
		bytes := 0
		for _, row := range h.plan {
			require.Equal(t, strconv.Itoa(got), row.ID)
			got, bytes = got+1, bytes+len(row.Record)
		}
		require.LessOrEqual(t, bytes, planBytes)
		most = max(most, len(h.ahead))
	}
	require.Equal(t, 101, got)
	require.Greater(t, most, 10)
	require.Less(t, most, readAhead*10)
}

// A part of a plan has a bound of its own, beside the later rows.
func TestOldestRowsUpToASize(t *testing.T) {
	h, _ := newHolding(t)
	for i := range 5 {
		h.enqueue(t, strconv.Itoa(i), 1000)
	}
	tx, err := h.db.Begin()
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	for _, c := range []struct {
		most, want int
		bytes      int64
	}{{10, 1, -1}, {10, 2, 2500}, {1, 1, 2500}, {10, 1, 2500}} {
		rows, err := h.oldest(t.Context(), tx, c.most, c.bytes)
		require.NoError(t, err)
		require.Len(t, rows, c.want)
	}
	require.Empty(t, h.ahead)
}

// After it has lost and regained its shard, a relay sends no row that it had read before.
func TestRowsReadAheadAreForgottenWithTheShard(t *testing.T) {
	h, _ := newHolding(t, Batch(1))
	for i := range 20 {
		h.enqueue(t, strconv.Itoa(i), 1)
	}
	for len(h.ahead) == 0 {
		require.NoError(t, h.next(t.Context(), new(ending)))
	}
	_, err := h.db.Exec("UPDATE delayq_outbox_shards SET holder = 'other', held_until = 0, plan = '', number = number + 1; DELETE FROM delayq_outbox")
	require.NoError(t, err)
	require.NoError(t, h.next(t.Context(), new(ending)))
	require.Zero(t, h.number)
	held, _, err := h.acquire(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	require.NoError(t, h.next(t.Context(), new(ending)))
	require.Empty(t, h.plan)
}

// Rows that are sent again come before those that the relay had read before.
func TestRowsThatComeBackPassThoseReadAhead(t *testing.T) {
	h, rdb := newHolding(t, Batch(1), Keep(time.Hour))
	for i := range 20 {
		h.enqueue(t, strconv.Itoa(i), 1)
	}
	for len(h.ahead) < 3 {
		_, err := h.turn(t.Context())
		require.NoError(t, err)
	}
	require.NoError(t, rdb.FlushAll(t.Context()).Err())
	_, err := h.db.Exec("INSERT INTO delayq_outbox_resend (shard, since) VALUES (0, 1)")
	require.NoError(t, err)
	for h.again == 0 || len(h.plan) > 0 { // the plan in progress ends
		_, err := h.turn(t.Context())
		require.NoError(t, err)
	}
	require.NotEmpty(t, h.ahead)
	_, err = h.turn(t.Context())
	require.NoError(t, err)
	for len(h.plan) == 0 {
		_, err := h.turn(t.Context())
		require.NoError(t, err)
	}
	require.Equal(t, "0", h.plan[0].ID)
}

// Rows that stay come before those that the relay had read before.
func TestRowsThatStayPassThoseReadAhead(t *testing.T) {
	h, _ := newHolding(t, Batch(1))
	for i := range 20 {
		h.enqueue(t, strconv.Itoa(i), 1)
	}
	for len(h.ahead) < 3 {
		_, err := h.turn(t.Context())
		require.NoError(t, err)
	}
	first := h.plan[0].ID
	require.NoError(t, h.next(t.Context(), &ending{open: map[int]bool{0: true}}))
	require.Equal(t, first, h.plan[0].ID)
}

// An idle relay looks at all rows once a second, and otherwise only at keys that are not passed.
func TestLooksPassRowsThatWereSent(t *testing.T) {
	h, _ := newHolding(t)
	looks := func(what string, want bool) {
		t.Helper()
		waits, err := h.waits(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, waits, what)
	}
	h.enqueue(t, "late", 1) // key 1
	looks("the first look is at all rows", true)
	h.passed.floor, h.passed.marked = 1, time.Now().Add(time.Hour)
	h.passed.looked = time.Now().Add(time.Hour)
	looks("the row is below the floor", false)
	h.passed.looked = time.Time{} // a nudge, or a second later
	looks("a look at all rows", true)

	var p passed
	now := time.Now()
	p.add([]stored{{seq: 7}, {seq: 9}, {seq: 8}})
	require.Zero(t, p.from(now), "nothing has been looked at")
	require.Zero(t, p.from(now.Add(wholeLook/2)), "no row has passed for long enough")
	require.Zero(t, p.from(now.Add(wholeLook)))
	p.add([]stored{{seq: 20}})
	require.Zero(t, p.from(now.Add(passedAfter)), "a look at all rows")
	require.EqualValues(t, 9, p.from(now.Add(passedAfter)), "but not 20, which was chosen just now")
	require.Zero(t, p.from(now.Add(passedAfter+wholeLook)))
}

// One line tells of all rows of a plan that were refused.
func TestRefusedRowsAreOneLogLine(t *testing.T) {
	var log strings.Builder
	h, rdb := newHolding(t, Logger(slog.New(slog.NewTextHandler(&log, nil))))
	for i := range 50 {
		_, err := delayq.NewClient(rdb).Enqueue(context.Background(), "topic", strconv.Itoa(i), nil, delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
		h.enqueue(t, strconv.Itoa(i), 1)
	}
	require.NoError(t, h.next(t.Context(), new(ending)))
	end, err := h.send(t.Context())
	require.NoError(t, err)
	require.Len(t, end.refused, 50)
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), "rows=50")
}

// A request for an earlier time that comes while rows are sent again is not lost.
func TestResendForAnEarlierTime(t *testing.T) {
	h, _ := newHolding(t, Keep(time.Hour))
	require.NoError(t, (&resending{holding: h}).put(t.Context(), nil, 2000))
	_, err := h.db.Exec("INSERT INTO delayq_outbox_resend (shard, since) VALUES (0, 1000)")
	require.NoError(t, err)
	require.NoError(t, (&resending{holding: h}).put(t.Context(), nil, 2000))
	var since int64
	require.NoError(t, h.db.QueryRow("SELECT since FROM delayq_outbox_resend").Scan(&since))
	require.EqualValues(t, 1000, since)
	require.NoError(t, (&resending{holding: h}).put(t.Context(), nil, 1000))
	require.ErrorIs(t, h.db.QueryRow("SELECT since FROM delayq_outbox_resend").Scan(&since), sql.ErrNoRows)
}

// Of two requests the earlier time counts, whichever comes first.
func TestResendForTheEarlierOfTwoTimes(t *testing.T) {
	for _, order := range [][]int64{{1000, 2000}, {2000, 1000}} {
		h, _ := newHolding(t, Keep(time.Hour))
		for _, since := range order {
			_, err := h.box.Resend(t.Context(), h.db, time.UnixMilli(since))
			require.NoError(t, err)
		}
		var since int64
		require.NoError(t, h.db.QueryRow("SELECT since FROM delayq_outbox_resend").Scan(&since))
		require.EqualValues(t, 1000, since, order)
	}
}

// A relay gives its shard up at the second failure of Redis in a row. One can be a connection that
// was cut. While other topics have answers, it keeps the shard.
func TestShardIsGivenUpAtTheSecondFailure(t *testing.T) {
	h, _ := newHolding(t)
	lost := errors.New("i/o timeout")
	for _, works := range []bool{true, false} {
		_, err := h.failed(t.Context(), lost)
		require.ErrorIs(t, err, lost)
		require.Positive(t, h.number)
		if works {
			_, err = h.judge([]*delivery{{topic: "topic"}}, 0)
			require.NoError(t, err)
		}
	}
	h.stuck = time.Now()
	for range 3 {
		_, err := h.failed(t.Context(), lost)
		require.ErrorIs(t, err, lost)
		require.Positive(t, h.number)
	}
	h.stuck = time.Time{}
	_, err := h.failed(t.Context(), lost)
	require.ErrorIs(t, err, lost)
	require.Zero(t, h.number)
	require.WithinRange(t, h.barred, time.Now().Add(h.o.lease-time.Minute), time.Now().Add(h.o.lease), "Redis answers, so another relay may do better")

	away, _ := newHolding(t)
	away.client = delayq.NewClient(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, lost }, MaxRetries: -1, DialerRetries: 1}))
	for range 2 {
		_, err = away.failed(t.Context(), lost)
		require.ErrorIs(t, err, lost)
	}
	require.Zero(t, away.number)
	require.Zero(t, away.barred, "it goes on as soon as Redis is there")
}

// A relay that finds its shard in another state than it has left it ends nothing and begins anew.
// If rows of a plan are missing, the shard takes another name.
func TestShardInAnotherState(t *testing.T) {
	h, _ := newHolding(t)
	for i := range 3 {
		h.enqueue(t, strconv.Itoa(i), 1)
	}
	require.NoError(t, h.next(t.Context(), new(ending)))
	for _, change := range []string{"number = number - 1", "name = name || 'x'"} {
		_, err := h.db.Exec("UPDATE delayq_outbox_shards SET " + change)
		require.NoError(t, err)
		require.NoError(t, h.next(t.Context(), new(ending)))
		require.Zero(t, h.number, change)
		held, _, err := h.acquire(t.Context())
		require.NoError(t, err)
		require.True(t, held)
		require.Len(t, h.plan, 3)
	}
	_, err := h.db.Exec("DELETE FROM delayq_outbox WHERE id = ?", []byte("1"))
	require.NoError(t, err)
	held, _, err := h.acquire(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	before := h.name
	_, err = h.turn(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, before, h.name)
	require.Len(t, h.plan, 2)
}

// After a transaction that has failed, plans are half as large, until one has succeeded.
func TestPlansAreSmallerAfterAnError(t *testing.T) {
	h, _ := newHolding(t, Batch(100))
	for i := range 100 {
		h.enqueue(t, strconv.Itoa(i), 1)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		require.Error(t, h.next(over, new(ending)))
	}
	for _, most := range []int{12, 25, 50, 13} {
		require.NoError(t, h.next(t.Context(), new(ending)))
		require.Len(t, h.plan, most)
	}
	for range 100 {
		require.Error(t, h.next(over, new(ending)))
	}
	h.enqueue(t, "100", 1)
	h.enqueue(t, "101", 1)
	require.NoError(t, h.next(t.Context(), new(ending)))
	require.Len(t, h.plan, 1, "a plan is never empty because of that")
}

// While a relay asks Redis which rows it remembers, it extends its lease.
func TestLeaseWhileRedisIsAskedWhatItRemembers(t *testing.T) {
	h, rdb := newHolding(t, Keep(time.Hour), Lease(time.Second))
	h.enqueue(t, "a", 1)
	for h.enqueued(t, rdb) == "" || len(h.plan) > 0 {
		_, err := h.turn(t.Context())
		require.NoError(t, err)
	}
	var until int64
	asked := 0
	h.client = delayq.NewClient(rdb)
	rdb.AddHook(before(func() {
		asked++
		_, err := h.db.Exec("UPDATE delayq_outbox_shards SET held_until = 0")
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			return h.db.QueryRow("SELECT held_until FROM delayq_outbox_shards").Scan(&until) == nil && until > 0
		}, 10*time.Minute, time.Millisecond)
	}))
	h.again = 1
	require.NoError(t, h.resend(t.Context()))
	require.NotZero(t, asked)
}

func (h *holding) enqueued(t *testing.T, rdb *redis.Client) string {
	return rdb.HGet(t.Context(), "delayq:{topic}:stats", "enqueued").Val()
}

// A before hook does something before each command.
type before func()

func (before) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b before) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		b()
		return next(ctx, cmd)
	}
}

func (before) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Dead rows over the limit are deleted, those with the lowest keys first. That is logged when it
// begins and when it ends.
func TestDeadRowsOverTheLimit(t *testing.T) {
	var log strings.Builder
	h, _ := newHolding(t, DeadLimit(1500, time.Hour), Logger(slog.New(slog.NewTextHandler(&log, nil))))
	look := func(left ...int) {
		t.Helper()
		for _, want := range left {
			_, err := h.turn(t.Context())
			require.NoError(t, err)
			var n, most int
			require.NoError(t, h.db.QueryRow("SELECT COUNT(*), COALESCE(MAX(seq), 0) FROM delayq_outbox_dead").Scan(&n, &most))
			require.Equal(t, want, n)
			if n > 0 {
				require.Equal(t, 4000, most, "the youngest ones stay")
			}
		}
	}
	_, err := h.db.Exec("WITH RECURSIVE n(seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM n WHERE seq < 4000) " +
		"INSERT INTO delayq_outbox_dead (seq, " + rowNames + ", reason, refused) " +
		"SELECT seq, 0, 1, 't', x'31', '', 0, 0, 0, x'', 'why', " + SQLite.clock() + " FROM n")
	require.NoError(t, err)
	look(3000, 2000, 1500, 1500) // without a wait while there are many
	require.False(t, time.Now().After(h.drops))
	require.EqualValues(t, 2500, h.State().Deleted)
	require.Equal(t, 1, strings.Count(log.String(), "over the limit"), log.String())
	h.drops = time.Time{}
	look(1500)
	require.Contains(t, log.String(), "deleted=2500")

	_, err = h.db.Exec("UPDATE delayq_outbox_dead SET refused = refused - 3600001 WHERE seq < 3900")
	require.NoError(t, err)
	h.drops = time.Time{}
	look(500, 101, 101)
	require.Equal(t, 2, strings.Count(log.String(), "over the limit"), log.String())
	h.o.dead, h.shard, h.drops = 0, 1, time.Time{}
	look(101) // that is for the relay that holds shard 0
	h.shard = 0
	look(0)
}

// Kept rows are trimmed every tenth of the time for which they are kept, and every minute at least;
// at once while there are many.
func TestKeptRowsAreTrimmedOften(t *testing.T) {
	for keep, every := range map[time.Duration]time.Duration{time.Minute: 6 * time.Second, 10 * time.Minute: time.Minute, 6 * 24 * time.Hour: time.Minute} {
		h, _ := newHolding(t, Keep(keep))
		h.keepMany(t, trimRows+1, 1, 1, 1)
		require.NoError(t, h.trim(t.Context()))
		require.False(t, h.trims.After(time.Now()), "there are more")
		before := time.Now()
		require.NoError(t, h.trim(t.Context()))
		require.WithinRange(t, h.trims, before.Add(every), time.Now().Add(every), keep)
	}
}

// No more cancels pass than a plan has room for.
func TestCancelsOfAPlan(t *testing.T) {
	s := &strait{cancels: []int64{1, 2, 3, 4, 5}}
	for _, c := range []struct{ most, want, left int }{{0, 0, 5}, {2, 2, 3}, {1, 1, 2}, {9, 2, 0}, {9, 0, 0}} {
		require.Len(t, s.take(c.most), c.want)
		require.Len(t, s.cancels, c.left)
	}
}

// Dead rows that get lower keys than those that were counted count within an hour.
func TestDeadRowsAreCountedAgain(t *testing.T) {
	h, _ := newHolding(t, DeadLimit(100, time.Hour))
	dead := func(from, to int) (n int) {
		t.Helper()
		_, err := h.db.Exec("WITH RECURSIVE n(seq) AS (SELECT ? UNION ALL SELECT seq + 1 FROM n WHERE seq < ?) "+
			"INSERT INTO delayq_outbox_dead (seq, "+rowNames+", reason, refused) "+
			"SELECT seq, 0, 1, 't', x'31', '', 0, 0, 0, x'', 'why', "+SQLite.clock()+" FROM n", from, to)
		require.NoError(t, err)
		h.drops = time.Time{}
		_, err = h.turn(t.Context())
		require.NoError(t, err)
		require.NoError(t, h.db.QueryRow("SELECT COUNT(*) FROM delayq_outbox_dead").Scan(&n))
		return n
	}
	counted := time.Now()
	require.Equal(t, 80, dead(1001, 1080))
	require.Equal(t, 90, dead(1, 10), "nobody knows of too many")
	require.Equal(t, 105, dead(11, 25), "nor now")
	require.WithinRange(t, h.census.until, counted.Add(time.Hour), time.Now().Add(time.Hour))
	h.census.until = time.Now()
	require.Equal(t, 100, dead(26, 26))
	require.Equal(t, 100, dead(1081, 1081), "a greater key counts at once")
}

// A relay that cannot look at the dead rows sends rows all the same.
func TestDeadRowsThatCannotBeRead(t *testing.T) {
	h, rdb := newHolding(t)
	h.enqueue(t, "1", 1)
	_, err := h.db.Exec("ALTER TABLE delayq_outbox_dead RENAME COLUMN refused TO other")
	require.NoError(t, err)
	failed := 0
	for h.enqueued(t, rdb) == "" && failed < 3 {
		if _, err := h.turn(t.Context()); err != nil {
			failed++
		}
	}
	require.Equal(t, 1, failed, "the next look is in a minute")
	require.Equal(t, "1", h.enqueued(t, rdb))
}

// Refused rows whose keys dead rows have, or which have the key of each other, get keys that no
// dead row has.
func TestDeadRowsWithKeysThatAreTaken(t *testing.T) {
	h, _ := newHolding(t)
	for _, id := range []string{"1", "2", "3"} {
		h.enqueue(t, id, 1)
	}
	for _, statement := range []string{
		"INSERT INTO delayq_outbox_later (seq, " + rowNames + ", due) SELECT seq, shard, kind, topic, x'6c6174', replaces, due_at, delay_ms, made, record, 0 FROM delayq_outbox WHERE seq = 1",
		"INSERT INTO delayq_outbox_dead (seq, " + rowNames + ", reason, refused) SELECT seq, " + rowNames + ", 'old', 0 FROM delayq_outbox WHERE seq = 2",
	} {
		_, err := h.db.Exec(statement)
		require.NoError(t, err)
	}
	for _, rows := range [][]refusal{
		{{1, "topic", "lat", "a"}, {1, "topic", "1", "b"}}, {{2, "topic", "2", "c"}, {3, "topic", "3", "d"}, {7, "topic", "gone", "e"}},
	} {
		held, err := h.inTx(t.Context(), func(ctx context.Context, tx session) error { return h.bury(ctx, tx, rows) })
		require.NoError(t, err)
		require.True(t, held)
	}
	dead, err := h.box.Dead(t.Context(), h.db, 0, 10)
	require.NoError(t, err)
	var got []string
	for _, row := range dead {
		got = append(got, strconv.FormatInt(row.Seq, 10)+" "+row.ID+" "+row.Reason)
	}
	require.Equal(t, []string{"1 lat a", "2 2 old", "3 1 b", "8 2 c", "9 3 d"}, got)
	s, err := h.box.Stats(t.Context(), h.db)
	require.NoError(t, err)
	require.Zero(t, s.Later)
}
