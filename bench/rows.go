package main

import (
	"context"
	"slices"
	"time"
)

// The figures of single rows, beside those of meter.go.
const (
	figMemory        = "memory_bytes_per_job"
	figP50           = "late_p50_ms"
	figP99           = "late_p99_ms"
	figFirst         = "late_least_ms"
	figWorst         = "late_most_ms"
	figEarly         = "early_jobs"
	figLoad          = "load_jobs_per_s"
	figBusy          = "busy_percent"
	figIdleCommands  = "commands_per_s"
	figIdleCPU       = "redis_cpu_us_per_s"
	figIdleBytes     = "network_bytes_per_s"
	figSlowScripts   = "scripts_over_5_ms"
	figLongestScript = "longest_script_ms"
	figPing          = "ping_p99_ms"
	figPingWorst     = "ping_most_ms"
	figRTT           = "rtt_ms"
	figCallP50       = "call_p50_round_trips"
	figCallP99       = "call_p99_round_trips"
	figCeiling       = "ceiling_percent"
	figStartP50      = "start_p50_round_trips"
	figStartP99      = "start_p99_round_trips"
	figConns         = "connections"
	figConnsLoaded   = "connections_loaded"
	figGoroutines    = "goroutines"
	figHeap          = "heap_bytes_per_topic"
	figIdleCalls     = "redis_calls_per_s"
	figTakes         = "takes_per_job"
	figPageP50       = "page_p50_ms"
	figPageP99       = "page_p99_ms"
	figProcess       = "process_cpu_us_per_job"
	figDatabase      = "database_cpu_us_per_job"
	figCommitP50     = "start_p50_ms"
	figCommitP99     = "start_p99_ms"
	figTripP50       = "trip_p50_ms"
	figTripP99       = "trip_p99_ms"
	figShare         = "rate_percent"
	figWindow        = "starts_in_worst_window"
	figRedis         = "redis_cpu_percent"
)

// worstCounts are the figures with the promise "never": the median of three
// rounds would hide a bad one.
var worstCounts = []string{figEarly, figSlowScripts, figLongestScript, figWindow}

// row is one line of the table: something measured on its sides in turn.
type row struct {
	id      string // for -rows and the JSON report
	title   string
	sides   []side // the targets are about the first; ratios are to the second
	targets []target
	rounds  int // most rounds; 0 is as many as asked for
}

// side is one of the things a row compares.
type side struct {
	label   string
	measure func(context.Context, *bench) (sample, error)
	// beside makes the ratio under this side that of the first side by it, as
	// under the second one. Otherwise it is this side's by the second.
	beside bool
}

// target is what a figure of the first side shall be.
type target struct {
	figure string
	most   bool    // bound is the largest good value; otherwise the smallest
	bound  float64 // as a number, or as a multiple of the second side's
	ratio  bool
}

// The four kinds of target.
func timesAtLeast(figure string, bound float64) target { return target{figure, false, bound, true} }
func timesAtMost(figure string, bound float64) target  { return target{figure, true, bound, true} }
func atLeast(figure string, bound float64) target      { return target{figure, false, bound, false} }
func atMost(figure string, bound float64) target       { return target{figure, true, bound, false} }

// sizes are the numbers of jobs and the lengths of time of all rows.
type sizes struct {
	warm                 int // jobs of a warm-up
	enqueueOne, enqueue  int
	bulk                 int
	backlog, due, life   int
	hooks                int
	laneKeys             int // the most keys that jobs have
	memory               int
	lateJobs, loadRate   int
	lateSpan             time.Duration
	idleSettle, idleSpan time.Duration
	busyShort, busyLong  int
	scale                []int // pending jobs, rising
	scaleJobs            int   // measured at a time, at most the smallest of them
	scaleCycles          int   // how often each step is measured; the sum counts
	burst                int
	farPings             int
	farSpan              time.Duration // of single calls over a long way
	farNow               int
	topicLate, topicLoad int
	wakes                int
	cancel, mix          int
	apply, applyFew      int // jobs of an Apply
	payloads             int // bytes of all large payloads together
	largest              int // jobs with the largest payloads
	keyed                int
	rateSpan             time.Duration
	schedules            int
	every                time.Duration // of a schedule
	periods              int
	aof                  int
	inspect              []int // jobs of a topic that is read, rising
	pages, large         int
	transactions         int // with a job of an outbox
	committed, commits   int // jobs of an outbox: a backlog, one at a time
	callOne, calls       int // of jobs that are waited for
	stepped              int // jobs with steps
	progressSpan         time.Duration
}

// fullSizes are those of the targets.
func fullSizes() sizes {
	return sizes{
		warm:       2_000,
		enqueueOne: 30_000, enqueue: 200_000,
		bulk:    300_000,
		backlog: 100_000, due: 100_000, life: 100_000,
		hooks:    300_000,
		laneKeys: 1_000_000,
		memory:   100_000,
		lateJobs: 2_000, loadRate: 5_000,
		lateSpan:   10 * time.Second,
		idleSettle: 3 * time.Second, idleSpan: 10 * time.Second,
		busyShort: 100_000, busyLong: 20_000,
		scale:     []int{10_000, 1_000_000, 5_000_000},
		scaleJobs: 5_000, scaleCycles: 4,
		burst:    1_000_000,
		farPings: 101, farSpan: 3 * time.Second, farNow: 300,
		topicLate: 1_000, topicLoad: 50_000,
		wakes:  30,
		cancel: 200_000, mix: 200_000,
		apply: 1_000_000, applyFew: 100_000,
		payloads:  400 << 20,
		largest:   16,
		keyed:     100_000,
		rateSpan:  8 * time.Second,
		schedules: 10_000, every: 10 * time.Second, periods: 2,
		aof:     100_000,
		inspect: []int{10_000, 1_000_000, 5_000_000},
		pages:   2_000, large: 300,
		transactions: 10_000, committed: 50_000, commits: 300,
		callOne: 5_000, calls: 50_000, stepped: 50_000, progressSpan: 10 * time.Second,
	}
}

// quickSizes show in about two minutes that everything works. Their figures say little.
func quickSizes() sizes {
	return sizes{
		warm:       200,
		enqueueOne: 2_000, enqueue: 10_000,
		bulk:    20_000,
		backlog: 3_000, due: 3_000, life: 3_000,
		hooks:    3_000,
		laneKeys: 5_000,
		memory:   10_000,
		lateJobs: 100, loadRate: 1_000,
		lateSpan:   500 * time.Millisecond,
		idleSettle: 300 * time.Millisecond, idleSpan: 700 * time.Millisecond,
		busyShort: 3_000, busyLong: 1_000,
		scale:     []int{1_000, 10_000, 50_000},
		scaleJobs: 500, scaleCycles: 1,
		burst:    50_000,
		farPings: 11, farSpan: 100 * time.Millisecond, farNow: 10,
		topicLate: 50, topicLoad: 1_000,
		wakes:  3,
		cancel: 10_000, mix: 10_000,
		apply: 20_000, applyFew: 5_000,
		payloads:  4 << 20,
		largest:   2,
		keyed:     3_000,
		rateSpan:  time.Second,
		schedules: 200, every: 500 * time.Millisecond, periods: 2,
		aof:     1_000,
		inspect: []int{1_000, 10_000, 20_000},
		pages:   50, large: 10,
		transactions: 400, committed: 1_000, commits: 10,
		callOne: 100, calls: 1_000, stepped: 1_000, progressSpan: 2 * time.Second,
	}
}

// rows is the table. Its targets hold for fullSizes on two cores.
func rows() []row {
	return slices.Concat(
		enqueueRows(), payloadRows(), largestRows(), optionRows(), workRows(), waitRows(), wideRows(), farRows(), topicRows(), callRows(), aofRows(),
		inspectRows(), limitRows(), rateRows(), keyRows(), scheduleRows(), []row{hookRow(), laneRow()}, outboxRows(), resultRows(), thenRows(), flowRows(), partRows(),
	)
}

// enqueueRows are the rows about storing jobs.
func enqueueRows() []row {
	one := func(s sizes) int { return s.enqueueOne }
	single := func(s sizes) int { return s.enqueue }
	bulk := func(s sizes) int { return s.bulk }
	return []row{
		{
			id: "enqueue/1", title: "enqueue delayed jobs, 1 goroutine",
			sides:   append(both(enqueueFrom(1, one)), bullmqAdd(1, payloadSize, one)),
			targets: []target{timesAtLeast(figRate, 1), timesAtMost(figCPU, 1)},
		},
		{
			id: "enqueue/64", title: "enqueue, 64 goroutines, single calls",
			sides:   append(both(enqueueFrom(64, single)), bullmqAdd(64, payloadSize, single)),
			targets: []target{timesAtLeast(figRate, 3.5)},
		},
		{
			id: "enqueue/512", title: "enqueue, 512 goroutines, single calls",
			sides:   append(both(enqueueFrom(512, single)), bullmqAdd(512, payloadSize, single)),
			targets: []target{timesAtLeast(figRate, 5)},
		},
		{
			id: "enqueue/bulk", title: "enqueue in bulk; asynq: its best of 1, 64, 512 goroutines",
			sides:   []side{delayqProduct.on(enqueueBulk(bulk)), asynqProduct.on(enqueueBest(bulk)), bullmqAdd(0, payloadSize, bulk)},
			targets: []target{timesAtLeast(figRate, 6)},
		},
	}
}

// workRows are the rows about working jobs off.
func workRows() []row {
	backlog := func(s sizes) int { return s.backlog }
	due := func(s sizes) int { return s.due }
	short, long := func(s sizes) int { return s.busyShort }, func(s sizes) int { return s.busyLong }
	return []row{
		{
			id: "work/10", title: "work off a ready backlog, no-op handler, concurrency 10",
			sides:   both(workBacklog(10, backlog)),
			targets: []target{timesAtLeast(figRate, 6)},
		},
		{
			id: "work/64", title: "work off a ready backlog, concurrency 64",
			sides:   append(both(workBacklog(64, backlog)), bullmqWork(bullmqConcurrency, 0, payloadSize, backlog)),
			targets: []target{timesAtLeast(figRate, 10)},
		},
		{
			id: "work/256", title: "work off a ready backlog, concurrency 256",
			sides:   both(workBacklog(256, backlog)),
			targets: []target{timesAtLeast(figRate, 10)},
		},
		{
			id: "due", title: "all due at the same second (100,000), concurrency 64",
			sides:   append(both(workDue(1, due)), bullmqDue(due)),
			targets: []target{timesAtLeast(figRate, 12)},
		},
		{
			id: "life", title: "whole life of a delayed job",
			sides:   append(both(wholeLife), bullmqSide(bullmqLife)),
			targets: []target{timesAtMost(figCPU, 0.2)},
		},
		{
			id: "busy/1ms", title: "a handler that takes 1 ms, concurrency 64",
			sides:   append(both(workBusy(64, time.Millisecond, short)), bullmqWork(64, time.Millisecond, payloadSize, short)),
			targets: []target{atLeast(figBusy, 95)},
		},
		{
			id: "busy/10ms", title: "a handler that takes 10 ms, concurrency 64",
			sides:   append(both(workBusy(64, 10*time.Millisecond, long)), bullmqWork(64, 10*time.Millisecond, payloadSize, long)),
			targets: []target{atLeast(figBusy, 95)},
		},
	}
}

// waitRows are the rows about jobs that wait, and servers that do.
func waitRows() []row {
	return []row{
		{
			id: "memory", title: "memory per pending job",
			sides:   append(both(memoryPerJob), bullmqSide(bullmqMemory)),
			targets: []target{timesAtMost(figMemory, 0.55)},
		},
		{
			id: "late/idle", title: "lateness of jobs at random times",
			sides:   append(both(lateness(false, time.Second)), bullmqLate(false)),
			targets: []target{atMost(figP50, 1), atMost(figP99, 5), atMost(figEarly, 0)},
		},
		{
			id: "late/loaded", title: "lateness while another topic runs",
			sides:   append(both(lateness(true, time.Second)), bullmqLate(true)),
			targets: []target{atMost(figP99, 20), atMost(figEarly, 0)},
		},
		{
			id: "idle", title: "idle server, 10 topics",
			sides:   append(both(idle), bullmqSide(bullmqIdle)),
			targets: []target{atMost(figIdleCommands, 15)},
		},
	}
}

// wideRows are the rows with many servers or many jobs.
func wideRows() []row {
	due := func(s sizes) int { return s.due }
	return []row{
		{
			id: "servers", title: "10 servers on one topic, against 1",
			sides: []side{
				product{"10 servers", delayqProduct.open}.on(workDue(10, due)),
				product{"1 server", delayqProduct.open}.on(workDue(1, due)),
			},
			targets: []target{timesAtLeast(figRate, 1), timesAtMost(figCommands, 1)},
		},
		{
			id: "scale", title: "Redis CPU per job while the backlog grows (µs @ pending)",
			sides: []side{delayqProduct.on(scale)},
			targets: []target{
				atMost(figGrowth(stepEnqueue), 1.5), atMost(figGrowth(stepScatter), 1.5),
				atMost(figGrowth(stepRun), 1.5), atMost(figGrowth(stepCancel), 1.5),
			},
			rounds: 1, // long, and each step is measured several times anyway
		},
		{
			id: "burst", title: "all due within one second (a million): what others feel",
			sides:   []side{delayqProduct.on(burst)},
			targets: []target{atMost(figSlowScripts, 0), atMost(figPing, 5)},
			rounds:  3,
		},
	}
}
