package outbox

import (
	"database/sql"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// Each bound is as the comments say: the values at it are accepted, and those beyond it are not.
func TestBoundsOfOptions(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	h, _ := newHolding(t)
	in, err := NewInbox(SQLite)
	require.NoError(t, err)
	relay := func(o RelayOption) error { return h.box.Relay(h.db, h.client, o).err }
	numbers := func(make func(n int) RelayOption) func(time.Duration) error {
		return func(n time.Duration) error { return relay(make(int(n))) }
	}
	for name, c := range map[string]struct {
		least, most time.Duration // or a number
		use         func(d time.Duration) error
	}{
		"Poll":      {time.Millisecond, time.Minute, func(d time.Duration) error { return relay(Poll(d)) }},
		"Lease":     {time.Second, 10 * time.Minute, func(d time.Duration) error { return relay(Lease(d)) }},
		"Horizon":   {time.Minute, century, func(d time.Duration) error { return relay(Horizon(d)) }},
		"Keep":      {time.Minute, 6 * 24 * time.Hour, func(d time.Duration) error { return relay(Keep(d)) }},
		"age":       {time.Minute, century, func(d time.Duration) error { return relay(DeadLimit(1, d)) }},
		"DeadLimit": {0, 10_000_000, numbers(func(n int) RelayOption { return DeadLimit(n, time.Hour) })},
		"Batch":     {1, 999, numbers(Batch)},
		"Shards": {1, 64, func(n time.Duration) error {
			_, err := New(SQLite, Shards(int(n)))
			return err
		}},
		"Trim": {time.Minute, math.MaxInt64 - 1, func(d time.Duration) error {
			_, err := in.Trim(t.Context(), Autocommit(h.db), d)
			return err
		}},
		"Dead": {1, 1000, func(n time.Duration) error {
			_, err := h.box.Dead(t.Context(), h.db, 0, int(n))
			return err
		}},
		"Check": {time.Millisecond, math.MaxInt64 - 1, func(d time.Duration) error {
			_, err := h.box.Check(t.Context(), h.db, d)
			return err
		}},
	} {
		require.NoError(t, c.use(c.least), name)
		require.ErrorIs(t, c.use(c.least-1), ErrInvalid, name)
		require.NoError(t, c.use(c.most), name)
		if c.most < math.MaxInt64-1 {
			require.ErrorIs(t, c.use(c.most+1), ErrInvalid, name)
		}
	}
}

// Check finds rows of the first shard that an outbox does not have, in either table.
func TestCheckFindsRowsOfTheNextShard(t *testing.T) {
	h, _ := newHolding(t)
	kinds := func() (list []FindingKind) {
		report, err := h.box.Check(t.Context(), h.db, time.Hour)
		require.NoError(t, err)
		for _, f := range report.Findings {
			list = append(list, f.Kind)
		}
		return list
	}
	h.enqueue(t, "x", 1)
	require.NotContains(t, kinds(), FindingLostShard)
	for _, move := range []string{
		"UPDATE delayq_outbox SET shard = 1",
		"INSERT INTO delayq_outbox_later SELECT *, 0 FROM delayq_outbox; DELETE FROM delayq_outbox",
	} {
		_, err := h.db.Exec(move)
		require.NoError(t, err)
		require.Contains(t, kinds(), FindingLostShard, move)
	}
	_, err := h.db.Exec("UPDATE delayq_outbox_later SET shard = 0")
	require.NoError(t, err)
	require.NotContains(t, kinds(), FindingLostShard)
}

// Statements are tried again that have met one of another process, and no others.
func TestStatementsThatHaveMet(t *testing.T) {
	for text, met := range map[string]bool{
		`ERROR: relation "delayq_outbox" already exists (SQLSTATE 42P07)`:                                    true,
		`duplicate key value violates unique constraint "pg_type_typname_nsp_index"`:                         true,
		`duplicate key value violates unique constraint "pg_class_relname_nsp_index"`:                        true,
		"database is locked (5) (SQLITE_BUSY)":                                                               true,
		"permission denied for schema public":                                                                false,
		`near "x": syntax error`:                                                                             false,
		"Error 1142 (42000): CREATE command denied to user 'x'@'127.0.0.1' for table `shop`.`delayq_outbox`": false,
	} {
		require.Equal(t, met, crossed(errors.New(text)), text)
	}
}

// Whatever a relay does that extends its lease, it does so again when half of that is over.
func TestLeaseIsExtendedInTime(t *testing.T) {
	const lease = 10 * time.Minute
	h, _ := newHolding(t, Lease(lease), Keep(time.Hour), DeadLimit(0, time.Hour))
	until := func() (until int64) {
		require.NoError(t, h.db.QueryRow("SELECT held_until FROM delayq_outbox_shards").Scan(&until))
		return until
	}
	for name, step := range map[string]func() error{
		"acquire": func() error {
			h.number = 0
			_, _, err := h.acquire(t.Context())
			return err
		},
		"waits": func() error {
			_, err := h.waits(t.Context())
			return err
		},
		"remember": func() error {
			h.recall = latest
			return h.remember(t.Context())
		},
		"next": func() error { return h.next(t.Context(), new(ending)) },
		"put":  func() error { return (&resending{holding: h}).put(t.Context(), nil, 1) },
		"drop": func() error {
			_, err := h.db.Exec("INSERT INTO delayq_outbox_dead (seq, " + rowNames + ", reason, refused) SELECT 1, 0, 1, 't', x'31', '', 0, 0, 0, x'', 'why', 0")
			if err != nil {
				return err
			}
			return h.drop(t.Context())
		},
		"send": func() error {
			_, stop := h.keepLease(t.Context())
			var over error
			require.Eventually(t, func() bool { return until() > 0 }, 10*time.Minute, time.Millisecond)
			over = stop()
			return over
		},
	} {
		_, err := h.db.Exec("UPDATE delayq_outbox_shards SET held_until = 0")
		require.NoError(t, err)
		h.till = time.Now()
		before := time.Now()
		require.NoError(t, step(), name)
		require.Positive(t, h.number, name)
		require.InDelta(t, before.Add(lease).UnixMilli(), until(), 60_000, name)
		require.WithinRange(t, h.till, before.Add(lease/4), time.Now().Add(lease/2), name)
	}
}

// A relay that takes a shard does not trust what it had counted before: others may have deleted
// rows. That its looks were too slow it remembers.
func TestCensusBeginsAnewWithTheShard(t *testing.T) {
	h, _ := newHolding(t)
	h.census = census{halved: 2, below: 3, seen: 4, last: 5, count: 6, until: time.Now().Add(time.Hour), over: 7}
	h.number = 0
	held, _, err := h.acquire(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	require.Equal(t, census{halved: 2}, h.census)
}

// The rows of a plan that has not ended are kept with the marker of that plan, and the next plan
// has the one after it, also for another relay.
func TestMarkerOfAPlanThatHasNotEnded(t *testing.T) {
	h, _ := newHolding(t, Keep(time.Hour))
	for range 3 { // of the third one, the rows of the first two are kept
		h.enqueue(t, "", 1)
		require.NoError(t, h.next(t.Context(), new(ending)))
	}
	before := h.marker
	require.NotZero(t, before.slot)
	h.number, h.last = 0, marker{}
	held, _, err := h.acquire(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	require.Equal(t, before, h.marker)
	require.Equal(t, before, h.last)
	require.Zero(t, h.recall)
}

// While kept rows are to be sent again, no plan is made: their keys are lower than those of others.
func TestNoPlanBeforeAResend(t *testing.T) {
	h, _ := newHolding(t, Keep(time.Hour))
	h.enqueue(t, "first", 1)
	require.NoError(t, h.next(t.Context(), new(ending)))
	h.enqueue(t, "second", 1)
	_, err := h.box.Resend(t.Context(), h.db, time.UnixMilli(1))
	require.NoError(t, err)
	_, err = h.turn(t.Context()) // it looks for its last marker
	require.NoError(t, err)
	_, err = h.turn(t.Context())
	require.NoError(t, err)
	require.Empty(t, h.plan)
	_, err = h.turn(t.Context()) // it sends again
	require.NoError(t, err)
	require.ErrorIs(t, h.db.QueryRow("SELECT since FROM delayq_outbox_resend").Scan(new(int64)), sql.ErrNoRows)
	_, err = h.turn(t.Context())
	require.NoError(t, err)
	require.Len(t, h.plan, 1)
	require.Equal(t, "second", h.plan[0].ID)
}

// A row whose record is larger than all records of a plan may be is sent alone.
func TestRowThatIsLargerThanAPlan(t *testing.T) {
	h, rdb := newHolding(t)
	ob, err := New(SQLite, ClientOptions(delayq.MaxPayload(8<<20)))
	require.NoError(t, err)
	h.client = delayq.NewClient(rdb, delayq.MaxPayload(8<<20))
	for _, size := range []int{1, planBytes + 1, 1} {
		_, err := ob.Enqueue(t.Context(), Autocommit(h.db), "topic", "", make([]byte, size))
		require.NoError(t, err)
	}
	for _, want := range []int{1, 1, 1} {
		_, err := h.turn(t.Context())
		require.NoError(t, err)
		require.Len(t, h.plan, want)
	}
	_, err = h.turn(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, rdb.HLen(t.Context(), "delayq:{topic}:pool").Val())
}
