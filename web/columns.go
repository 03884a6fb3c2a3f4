package web

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/delayq/delayq"
)

const (
	headBytes   = 64 << 10         // payloads that are longer are not read for a list
	headRunes   = 120              // of a payload that a list shows
	headReaders = 8                // calls to Redis at the same time
	headEvery   = 30 * time.Second // payloads do not change, but a list does
)

// fillColumns puts what was asked for into the jobs of a list.
func (h *Handler) fillColumns(ctx context.Context, f *filter, list []*delayq.JobInfo, records []jobRecord) error {
	if len(f.columns) == 0 {
		return nil
	}
	var heads []string
	if slices.Contains(f.columns, payloadColumn) {
		var err error
		if heads, err = h.heads(ctx, f.query.Topic, list); err != nil {
			return err
		}
	}
	for i, info := range list {
		columns := make(map[string]string)
		for _, name := range f.columns {
			if name == payloadColumn {
				columns[name] = heads[i]
			} else if value, ok := info.Headers[strings.TrimPrefix(name, "header:")]; ok {
				columns[name] = value
			}
		}
		records[i].Columns = columns
	}
	return nil
}

// heads returns the beginnings of the payloads of jobs.
func (h *Handler) heads(ctx context.Context, topic string, list []*delayq.JobInfo) ([]string, error) {
	sum := fnv.New128a()
	for _, info := range list {
		fmt.Fprintf(sum, "%d %s %s %d ", len(info.ID), info.ID, info.Nonce(), info.PayloadSize)
	}
	return readFor(h, ctx, headEvery, "heads\x00"+topic+"\x00"+string(sum.Sum(nil)), func(ctx context.Context) ([]string, error) {
		rule := h.o.rule(topic)
		heads, failed := make([]string, len(list)), make([]error, len(list))
		next := make(chan int)
		var wait sync.WaitGroup
		for range min(headReaders, len(list)) {
			wait.Go(func() {
				for i := range next {
					info, err := h.insp.Job(ctx, topic, list[i].ID)
					switch {
					case errors.Is(err, delayq.ErrNotFound):
					case err != nil:
						failed[i] = err
					case info.Undecodable == nil:
						heads[i] = head(rule.show(topic, info.Payload))
					}
				}
			})
		}
		for i, info := range list {
			if info.PayloadSize > 0 && info.PayloadSize <= headBytes && info.Undecodable == nil {
				next <- i
			}
		}
		close(next)
		wait.Wait()
		return heads, errors.Join(failed...)
	})
}

// head returns the beginning of a payload in one line.
func head(p shownPayload) string {
	var b strings.Builder
	left := headRunes
	text := p.Text
	if p.Format == JSON.Name && !p.Redacted {
		text = p.RawText() // without indentation
	}
	for word := range strings.FieldsSeq(text) {
		if b.Len() > 0 {
			b.WriteByte(' ')
			left--
		}
		for _, r := range word {
			if left--; left < 0 {
				return strings.TrimSpace(b.String()) + "…"
			}
			b.WriteRune(r)
		}
	}
	return b.String()
}
