package outbox

import (
	"context"
	"slices"
	"strconv"

	"github.com/delayq/delayq/internal/commit"
)

// A strait is what passes while Redis has no memory for new jobs of some topics: cancels of jobs
// that no row before them makes. They free memory.
type strait struct {
	topics  string // whose rows have been read, joined
	read    int64  // key up to which
	made    map[name]bool
	cancels []int64
}

const (
	straitRows    = 10_000 // that are read at a time
	straitCancels = 500    // most cancels of one plan
)

// search looks for cancels that can pass. When a topic has been tried again, it begins anew, which
// also finds rows that were committed late.
func (h *holding) search(ctx context.Context) error {
	var full []string
	tries := ""
	for _, topic := range h.skip {
		if p := h.aside[topic]; p.full {
			full = append(full, topic)
			tries += topic + " " + p.until.String() + "\n"
		}
	}
	if tries != h.strait.topics {
		h.strait = strait{topics: tries, made: make(map[name]bool)}
	}
	if len(full) == 0 || len(h.strait.cancels) >= straitCancels {
		return nil
	}
	return h.inOrder(ctx, func(ctx context.Context) error { return h.findCancels(ctx, full) })
}

// findCancels looks for cancels among some rows of topics.
func (h *holding) findCancels(ctx context.Context, full []string) error {
	own, order := h.own()
	rows, err := h.conn.QueryContext(ctx, h.query("SELECT seq, kind, topic, id FROM {table} WHERE "+own+" AND topic IN ("+marks(len(full))+
		")"+order+" LIMIT "+strconv.Itoa(straitRows)), append([]any{h.shard, h.strait.read}, values(full)...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() && len(h.strait.cancels) < straitCancels {
		var seq int64
		var kind commit.RowKind
		var id []byte
		var job name
		if err := rows.Scan(&seq, &kind, &job.topic, &id); err != nil {
			return err
		}
		h.strait.read, job.id = seq, string(id)
		switch {
		case kind == commit.RowEnqueue || kind == commit.RowFlow:
			h.strait.made[job] = true
		case kind == commit.RowCancel && !h.strait.made[job]:
			h.strait.cancels = append(h.strait.cancels, seq)
		}
	}
	return rows.Err()
}

// take returns cancels that pass, as rows that have nothing but their keys.
func (s *strait) take(most int) (list []stored) {
	n := min(most, len(s.cancels))
	for _, seq := range s.cancels[:n] {
		list = append(list, stored{seq: seq})
	}
	s.cancels = slices.Clone(s.cancels[n:])
	return list
}
