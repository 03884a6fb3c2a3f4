package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/check"
	"github.com/delayq/delayq/faults/rig"
	"github.com/delayq/delayq/internal/redistest"
)

func TestMain(m *testing.M) {
	rig.WorkerMain()
	os.Exit(m.Run())
}

// TestSoakShortly keeps the soak itself in working order. It is far too short to find much.
func TestSoakShortly(t *testing.T) {
	redistest.Need(t)
	s := &Soak{Seed: 1, Dir: t.TempDir(), For: 12 * time.Second, Log: io.Discard}
	report, err := s.Run(t.Context())
	require.NoError(t, err)
	for _, v := range report.Violations {
		t.Error(v)
	}
	t.Log(report)
	require.Greater(t, report.Finished, 100)
	require.Greater(t, report.Slots.Fired, int64(30))
	require.Greater(t, report.Slots.Spans, 30)
	require.NotZero(t, report.Slots.Checks)
	require.Greater(t, report.Limited.Samples, 100)
	if report.Faults[rig.Stall] == 0 { // of a busy machine, near which no start counts
		require.NotZero(t, report.Limited.Starts)
	}
	require.NotZero(t, report.Limited.Holds)
	require.NotZero(t, report.Limited.KeyHolds)
	require.NotZero(t, report.Limited.Ordered)
	require.NotZero(t, report.Told)
	require.Greater(t, report.Handed, 30)
	require.NotZero(t, report.Steps)
	require.NotZero(t, report.StepsKnown)
}

// TestSoakFindsLostLimits is the negative control of limits: in the middle, those of two topics and
// their keys are removed behind the queue's back, and many jobs of one key come. On a busy machine
// the judge excuses what processes do that stand still, so each kind must be found by one of five
// runs.
func TestSoakFindsLostLimits(t *testing.T) {
	redistest.Need(t)
	missed := []string{"I23", "I24", "I26"}
	var report *check.Report
	for seed := range uint64(5) {
		s := &Soak{Seed: 6 + seed, Dir: t.TempDir(), For: 6 * time.Second, Log: io.Discard}
		s.Sabotage = func(ctx context.Context, rdb *redis.Client) error { return loseLimits(ctx, s, rdb) }
		var err error
		report, err = s.Run(t.Context())
		require.NoError(t, err)
		missed = slices.DeleteFunc(missed, func(rule string) bool { return report.Count(rule) > 0 })
		if len(missed) == 0 {
			return
		}
	}
	t.Errorf("no run has found %v, the last one: %s", missed, report)
}

// loseLimits removes the limits of two topics, and stores many jobs of one key.
func loseLimits(ctx context.Context, s *Soak, rdb *redis.Client) (err error) {
	for range 1000 {
		_, err = rdb.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, topic := range []string{limited, ordered} {
				root := prefix + ":{" + topic + "}:"
				pipe.HDel(ctx, root+"meta", "flow", "limited")
				pipe.Del(ctx, root+"rules")
			}
			return nil
		})
		if err == nil {
			break
		}
		wait(ctx, 10*time.Millisecond) // Redis is away at the moment
	}
	if err != nil {
		return err
	}
	var tasks []*rig.Task
	for i := range 60 {
		tasks = append(tasks, &rig.Task{
			Topic: []string{limited, ordered}[i%2], ID: fmt.Sprintf("more-%d", i), Steps: []string{"hang:400ms"}, Retries: -1,
			Options: []delayq.JobOption{delayq.Key(keys[0])},
		})
	}
	for range 1000 {
		if err = s.put(ctx, tasks[:1]); err == nil {
			if tasks = tasks[1:]; len(tasks) == 0 {
				return nil
			}
		} else {
			wait(ctx, 10*time.Millisecond) // Redis is away or full at the moment
		}
	}
	return err
}

// TestSoakFindsALostSlot is the negative control of schedules: from the middle on, they are set to
// later slots behind the queue's back, again and again, because calls set some of them anew. On a
// busy machine the judge excuses what is late, so one of five runs must find one.
func TestSoakFindsALostSlot(t *testing.T) {
	redistest.Need(t)
	var report *check.Report
	for seed := range uint64(5) {
		if report = loseSlots(t, 3+seed); report.Count("I19") > 0 {
			return
		}
	}
	t.Error("not found: ", report)
}

// loseSlots is one run.
func loseSlots(t *testing.T, seed uint64) *check.Report {
	s := &Soak{Seed: seed, Dir: t.TempDir(), For: 6 * time.Second, Log: io.Discard}
	s.Sabotage = func(ctx context.Context, rdb *redis.Client) error {
		moved := 0
		for range 150 {
			state, err := check.Read(ctx, rdb, prefix)
			if err != nil {
				wait(ctx, 10*time.Millisecond) // Redis is away at the moment
				continue
			}
			for name, slot := range state.Topics["a"].Slots {
				if rdb.ZAddXX(ctx, prefix+":{a}:slots", redis.Z{Score: slot + 60_000, Member: name}).Err() == nil {
					moved++
				}
			}
		}
		if moved == 0 {
			return errors.New("found no schedule to move")
		}
		return nil
	}
	report, err := s.Run(t.Context())
	require.NoError(t, err)
	return report
}

// TestSoakWithAnOutbox keeps the run with the outbox in working order, in PostgreSQL or, where that
// is missing, in SQLite.
func TestSoakWithAnOutbox(t *testing.T) {
	redistest.Need(t)
	s := &Soak{Seed: 4, Dir: t.TempDir(), For: 8 * time.Second, Log: io.Discard, Outbox: true}
	report, err := s.Run(t.Context())
	require.NoError(t, err)
	for _, v := range report.Violations {
		t.Error(v)
	}
	t.Log(report)
	require.Greater(t, report.Rows["ok"], 100)
	require.NotZero(t, report.Rows["fail rolled back"])
	for outcome := range report.Rows {
		require.Contains(t, []string{"ok", "fail rolled back", "fail duplicate", "fail invalid"}, outcome)
	}
}

// TestSoakFindsWhatAnOutboxDoes is the negative control of the outbox: the database drops some rows
// that it says it has, and others are written once more, when some of their jobs are done.
func TestSoakFindsWhatAnOutboxDoes(t *testing.T) {
	redistest.Need(t)
	s := &Soak{Seed: 5, Dir: t.TempDir(), For: 10 * time.Second, Log: io.Discard, Outbox: true, Steady: true}
	s.Sabotage = func(ctx context.Context, _ *redis.Client) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		const columns = "shard, kind, topic, id, replaces, due_at, delay_ms, made, record"
		body := "INSERT INTO kept SELECT * FROM delayq_outbox WHERE seq = NEW.seq AND kind = 1 AND seq % 3 = 1; " +
			"DELETE FROM delayq_outbox WHERE seq = NEW.seq AND kind = 1 AND seq % 9 = 0; "
		statements := []string{
			"CREATE TABLE kept AS SELECT * FROM delayq_outbox WHERE 1 = 0",
			"CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN " + body + "RETURN NULL; END $$",
			"CREATE TRIGGER meddle AFTER INSERT ON delayq_outbox FOR EACH ROW EXECUTE FUNCTION meddle()",
		}
		if s.db == nil { // SQLite
			statements = []string{statements[0], "CREATE TRIGGER meddle AFTER INSERT ON delayq_outbox BEGIN " + body + "END"}
		}
		for _, statement := range statements {
			if _, err := s.box.DB.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		for kept := 0; kept < 50; {
			if err := s.box.DB.QueryRowContext(ctx, "SELECT COUNT(*) FROM kept").Scan(&kept); err != nil {
				return err
			}
		}
		if _, err := s.box.DB.ExecContext(ctx, "DROP TRIGGER meddle"+map[bool]string{false: " ON delayq_outbox"}[s.db == nil]); err != nil {
			return err
		}
		_, err := s.box.DB.ExecContext(ctx, "INSERT INTO delayq_outbox ("+columns+") SELECT "+columns+" FROM kept")
		return err
	}
	report, err := s.Run(t.Context())
	require.NoError(t, err)
	require.Greater(t, report.Count("I1"), 5, report)
	require.Greater(t, report.Count("I5")+report.Count("I7")+report.Count("I8"), 5, report)
	require.NotZero(t, report.Count("I11"), report) // jobs that are not done: refused rows of no call
}
