package outbox_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/outbox"
)

// Rows that no release has written, as somebody with access to the table can write them, hold up
// nothing and end no relay.
func TestStrangeRowsHoldUpNothing(t *testing.T) {
	eachWorld(t, func(w *world) {
		w.onRedis()
		// A good row, to copy what is not strange.
		w.enqueue(w.db, "good", delayq.ProcessIn(time.Hour))
		var record []byte
		require.NoError(w, w.db.QueryRow("SELECT record FROM delayq_outbox").Scan(&record))
		type row struct {
			kind                int64
			topic, id, replaces string
			dueAt, delay, made  int64
			record              []byte
		}
		now := time.Now().UnixMilli()
		n := 0
		strange := func(change func(r *row)) {
			n++
			r := row{kind: 1, topic: "topic", id: "strange " + strconv.Itoa(n), delay: 1000, made: now, record: record}
			change(&r)
			insert := "INSERT INTO delayq_outbox (shard, kind, topic, id, replaces, due_at, delay_ms, made, record) VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?)"
			if w.dialect == outbox.Postgres {
				for i := range 8 {
					insert = strings.Replace(insert, "?", "$"+strconv.Itoa(i+1), 1)
				}
			}
			_, err := w.db.Exec(insert, r.kind, r.topic, []byte(r.id), r.replaces, r.dueAt, r.delay, r.made, r.record)
			require.NoError(w, err)
		}
		for round, opts := range [][]outbox.RelayOption{nil, {outbox.Horizon(time.Hour), outbox.Keep(time.Hour)}} {
			for _, kind := range []int64{-1, 0, 4, 99, math.MaxInt64} {
				strange(func(r *row) { r.kind = kind })
			}
			for _, kind := range []int64{1, 2, 3} {
				for _, topic := range []string{"", "a{b", "a}b", "{}", "a b\n", strings.Repeat("x", 255), "ünicode", "delayq"} {
					strange(func(r *row) { r.kind, r.topic = kind, topic })
				}
				for _, id := range []string{"", "\x00", strings.Repeat("i", 1024), "\xff\xfe"} {
					strange(func(r *row) { r.kind, r.id = kind, id })
				}
				for _, when := range []int64{math.MinInt64, -1, math.MaxInt64} {
					strange(func(r *row) { r.kind, r.dueAt = kind, when })
					strange(func(r *row) { r.kind, r.delay = kind, when })
					strange(func(r *row) { r.kind, r.made = kind, when })
				}
			}
			for _, record := range [][]byte{{}, {0}, []byte("hello"), record[:8], record[:len(record)-1], append([]byte{255}, record...), make([]byte, 5000)} {
				strange(func(r *row) { r.record = record })
			}
			for _, replaces := range []string{"z", "rr", "r", "replace everything", "\x01"} {
				strange(func(r *row) { r.replaces = replaces })
			}
			last := "last " + strconv.Itoa(round)
			w.enqueue(w.db, last)
			stop := w.relay(opts...)
			w.drained()
			stop()
			require.Subset(w, w.jobs("topic"), []string{"good", last})
		}
		// What can be read has become a job. The rest is dead, and says why.
		dead, err := w.ob.Dead(w.Context(), w.db, 0, 1000)
		require.NoError(w, err)
		require.NotEmpty(w, dead)
		for _, d := range dead {
			require.NotEmpty(w, d.Reason)
		}
		report, err := w.ob.Check(w.Context(), w.db, time.Minute)
		require.NoError(w, err)
		require.Len(w, report.Findings, 2, "dead rows, and no relay")
	})
}
