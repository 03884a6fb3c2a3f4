package main

import (
	"context"
	"runtime"
	"time"
)

// The figures that every row has. Each is one number; its name carries the
// unit, and is the name in the JSON report.
const (
	figRate     = "jobs_per_s"
	figCPU      = "redis_cpu_us_per_job"
	figCommands = "commands_per_job"
	figBytes    = "network_bytes_per_job"
	figAllocs   = "allocs_per_job"
)

// sample is what one measurement gave: figure → value.
type sample map[string]float64

// meter reads the counters around the measured part of a row.
type meter struct {
	store    *store
	at       time.Time
	cpu      time.Duration
	commands int64
	bytes    int64
	mallocs  uint64
	database time.Duration
}

// startMeter collects the garbage of what came before and reads the counters.
func startMeter(ctx context.Context, s *store) (*meter, error) {
	m := &meter{store: s}
	runtime.GC()
	var err error
	if m.cpu, err = s.cpu(ctx); err != nil {
		return nil, err
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	m.mallocs = mem.Mallocs
	if s.db != nil {
		m.database, _ = s.db.cpu()
	}
	m.commands, m.bytes = s.traffic.commands.Load(), s.traffic.bytes()
	m.at = time.Now()
	return m, nil
}

// stop reads the counters again and shares them out over jobs. wall is the
// time the jobs took, which may end before the counters are read: a row of
// handled jobs stops the clock at the last handler and the counters when the
// servers have settled everything and are gone.
func (m *meter) stop(ctx context.Context, jobs int, wall time.Duration) (sample, error) {
	commands, bytes := m.store.traffic.commands.Load()-m.commands, m.store.traffic.bytes()-m.bytes
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	cpu, err := m.store.cpu(ctx)
	if err != nil {
		return nil, err
	}
	n := float64(jobs)
	result := sample{
		figRate:     n / wall.Seconds(),
		figCPU:      float64((cpu - m.cpu).Microseconds()) / n,
		figCommands: float64(commands) / n,
		figBytes:    float64(bytes) / n,
		figAllocs:   float64(mem.Mallocs-m.mallocs) / n,
	}
	if m.store.db != nil {
		if used, known := m.store.db.cpu(); known {
			result[figDatabase] = float64((used - m.database).Microseconds()) / n
		}
	}
	return result, nil
}
