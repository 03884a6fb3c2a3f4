package web

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/delayq/delayq"
)

type redisPage struct {
	Schema    string    `json:"schema"`
	Version   string    `json:"version"`
	Mode      string    `json:"mode"`
	Role      string    `json:"role"`
	Replicas  int       `json:"replicas"`
	Clients   int       `json:"clients"`
	Used      int64     `json:"used_memory_bytes"`
	Max       int64     `json:"max_memory_bytes"`
	Eviction  string    `json:"eviction"`
	AOF       bool      `json:"aof"`
	FSync     string    `json:"fsync,omitempty"`
	Snapshots string    `json:"snapshots,omitempty"`
	Last      time.Time `json:"last_snapshot,omitzero"`
	Time      time.Time `json:"time,omitzero"`
	Trip      float64   `json:"round_trip_seconds"`
	Missing   []string  `json:"missing,omitempty"`
	Warnings  []string  `json:"warnings"`

	Outboxes []outboxRow `json:"outboxes,omitempty"`
}

// RoundTrip returns the time of one small call.
func (p *redisPage) RoundTrip() time.Duration { return time.Duration(p.Trip * float64(time.Second)) }

// Knows reports whether Redis told a field of [delayq.RedisInfo].
func (p *redisPage) Knows(field string) bool { return !slices.Contains(p.Missing, field) }

// Memory returns bytes in MiB.
func (p *redisPage) Memory(n int64) string {
	return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB"
}

func (h *Handler) redisInfo(ctx context.Context) (*delayq.RedisInfo, error) {
	return read(h, ctx, "redis", func(ctx context.Context) (*delayq.RedisInfo, error) { return h.insp.Redis(ctx) })
}

func (h *Handler) redis(v *view) (any, error) {
	i, err := h.redisInfo(v.Request.Context())
	if err != nil {
		return nil, err
	}
	if !i.Time.IsZero() {
		v.Now = i.Time
	}
	rows, err := h.outboxes(v.Request.Context())
	if err != nil {
		return nil, err
	}
	return &redisPage{
		"delayq.web.redis/1", i.Version, i.Mode, i.Role, i.Replicas, i.Clients, i.UsedMemory, i.MaxMemory, i.Eviction, i.AOF, i.FSync,
		i.Snapshots, utc(i.LastSnapshot), utc(i.Time), i.RoundTrip.Seconds(), i.Missing, append([]string{}, v.warnings(i)...), rows,
	}, nil
}

// warnings returns what endangers the queue.
func (v *view) warnings(i *delayq.RedisInfo) (list []string) {
	if i.Eviction != "" && i.Eviction != "noeviction" {
		list = append(list, v.T("redis.evicts", i.Eviction))
	}
	if i.MaxMemory > 0 && i.UsedMemory > i.MaxMemory/10*9 {
		list = append(list, v.T("redis.full", number(i.UsedMemory*100/i.MaxMemory)))
	}
	if !i.AOF && i.Snapshots == "" && !slices.Contains(i.Missing, "AOF") && !slices.Contains(i.Missing, "Snapshots") {
		list = append(list, v.T("redis.forgets"))
	}
	return list
}
