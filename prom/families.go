package prom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A family is one metric with all its series. docs/metrics.md has the same list.
type family struct {
	name   string
	kind   string // counter, gauge or histogram
	labels []string
	help   string
}

const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
)

// The metrics of a process.
var (
	runsTotal = &family{"delayq_runs_total", counter, []string{"topic", "outcome"},
		"Jobs taken by this process, by how that ended. Jobs whose handler was not called count too."}
	lateness = &family{"delayq_lateness_seconds", histogram, []string{"topic"},
		"Time from the due time of a job to the start of its handler, by Redis's clock."}
	earlyRunsTotal = &family{"delayq_early_runs_total", counter, []string{"topic"},
		"Handlers that were started before their job was due. Always 0."}
	runDuration = &family{"delayq_run_duration_seconds", histogram, []string{"topic"},
		"Run time of handlers."}
	runningJobs = &family{"delayq_running_jobs", gauge, []string{"topic"},
		"Handlers that are running in this process."}
	panicsTotal = &family{"delayq_panics_total", counter, []string{"topic"},
		"Handlers that panicked or called runtime.Goexit."}
	enqueuesTotal = &family{"delayq_enqueues_total", counter, []string{"topic", "result"},
		"Jobs that clients of this process enqueued, by result."}
	cancelsTotal = &family{"delayq_cancels_total", counter, []string{"topic", "result"},
		"Jobs that clients of this process cancelled, by the state in which the job was found."}
	callDuration = &family{"delayq_client_call_duration_seconds", histogram, []string{"call"},
		"Duration of the calls of clients."}
	redisCallDuration = &family{"delayq_redis_call_duration_seconds", histogram, []string{"script"},
		"Duration of script calls, with the time in the network."}
	redisErrorsTotal = &family{"delayq_redis_errors_total", counter, []string{"script"},
		"Script calls that failed."}
	buildInfo = &family{"delayq_build_info", gauge, []string{"version"},
		"Version of the delayq module in this process. Always 1."}
)

// The metrics of a queue. All have the label prefix too.
var (
	jobs = &family{"delayq_jobs", gauge, []string{"topic", "state"},
		"Jobs by state."}
	retryingJobs = &family{"delayq_retrying_jobs", gauge, []string{"topic"},
		"Unfinished jobs with a finished attempt, except dead ones."}
	overdueJobs = &family{"delayq_overdue_jobs", gauge, []string{"topic"},
		"Jobs that are due and have not started."}
	oldestOverdue = &family{"delayq_oldest_overdue_seconds", gauge, []string{"topic"},
		"How long the oldest overdue job has been due. 0 if none is overdue."}
	dueJobs = &family{"delayq_due_jobs", gauge, []string{"topic", "within"},
		"Scheduled jobs that will fall due within this time. Overdue jobs do not count."}
	keyedJobs = &family{"delayq_keyed_jobs", gauge, []string{"topic"},
		"Ready jobs that have a key."}
	laneKeys = &family{"delayq_lane_keys", gauge, []string{"topic"},
		"Keys that take turns."}
	parcels = &family{"delayq_parcels", gauge, []string{"topic"},
		"Jobs that runs of the topic have handed over and that are not passed on yet."}
	oldestParcel = &family{"delayq_oldest_parcel_seconds", gauge, []string{"topic"},
		"How long the oldest job that a run of the topic has handed over has waited to be passed on. 0 if none waits."}
	flows = &family{"delayq_flows", gauge, []string{"topic"},
		"Flows whose last step is a job of the topic: open ones, and those whose last step is not over or is dead."}
	flowsAtRisk = &family{"delayq_flows_at_risk", gauge, []string{"topic"},
		"Open flows, among about 500 of the topic, that have a step that has ended badly, although half of the time to their deadline has passed."}
	partitions = &family{"delayq_partitions", gauge, []string{"topic"},
		"Partitions of the topic that take new jobs. 0 if it is not divided."}
	closingGenerations = &family{"delayq_closing_generations", gauge, []string{"topic"},
		"Earlier generations of partitions that have something left. The topic before it was divided counts as one."}
	paused = &family{"delayq_paused", gauge, []string{"topic"},
		"1 if the topic is paused."}
	liveServers = &family{"delayq_servers", gauge, []string{"topic"},
		"Live servers that take jobs of the topic."}
	workers = &family{"delayq_workers", gauge, []string{"topic"},
		"Jobs that these servers can run at a time: their concurrency, times the batch size of batch handlers."}
	scheduleNext = &family{"delayq_schedule_next_timestamp_seconds", gauge, []string{"topic"},
		"Earliest next slot of the topic's schedules."}
	jobEventsTotal = &family{"delayq_job_events_total", counter, []string{"topic", "event"},
		"What has happened to jobs in all processes, as Redis counts it."}
	leasesReclaimedTotal = &family{"delayq_leases_reclaimed_total", counter, []string{"topic"},
		"Leases that ran out."}
	leasesDroppedTotal = &family{"delayq_leases_dropped_total", counter, []string{"topic"},
		"Leases without a job, because Redis has lost its record."}
	prunedJobsTotal = &family{"delayq_pruned_jobs_total", counter, []string{"topic", "state"},
		"Dead jobs deleted by the DeadLimit of a server, and done jobs whose Retention is over."}
	repairsTotal = &family{"delayq_repairs_total", counter, []string{"topic"},
		"Jobs and entries that servers and Repair have repaired."}
	scheduleSlotsTotal = &family{"delayq_schedule_slots_total", counter, []string{"topic", "result"},
		"Slots of schedules: fired, skipped because of the overlap policy, or missed."}
	foldedTopics = &family{"delayq_folded_topics", gauge, nil,
		"Topics that share the label value _other."}
	redisUp = &family{"delayq_redis_up", gauge, nil,
		"1 if the last look at the queue could read it."}
	lookDuration = &family{"delayq_collector_duration_seconds", gauge, nil,
		"Duration of the last look at the queue."}
	lastSuccess = &family{"delayq_collector_last_success_timestamp_seconds", gauge, nil,
		"When the last look without an error ended."}
	lookErrorsTotal = &family{"delayq_collector_errors_total", counter, nil,
		"Looks that failed, or could not read all topics."}
)

// The metrics of an outbox. All have the label outbox too.
var (
	outboxRows = &family{"delayq_outbox_rows", gauge, nil,
		"Committed rows that wait for a relay. Counting ends at 10,000."}
	outboxOldest = &family{"delayq_outbox_oldest_row_seconds", gauge, nil,
		"How long the oldest row has waited, by the clock of the database. 0 if none waits."}
	outboxDead = &family{"delayq_outbox_dead_rows", gauge, nil,
		"Rows that Redis has refused. Counting ends at 10,000."}
	outboxLater = &family{"delayq_outbox_later_rows", gauge, nil,
		"Rows that are due beyond the horizon. Counting ends at 10,000."}
	outboxUp = &family{"delayq_outbox_up", gauge, nil,
		"1 if the last look at the outbox could read it."}
)

var processFamilies = []*family{
	runsTotal, lateness, earlyRunsTotal, runDuration, runningJobs, panicsTotal, enqueuesTotal, cancelsTotal,
	callDuration, redisCallDuration, redisErrorsTotal, buildInfo,
}

var queueFamilies = []*family{
	jobs, retryingJobs, overdueJobs, oldestOverdue, dueJobs, keyedJobs, laneKeys, parcels, oldestParcel, flows, flowsAtRisk,
	partitions, closingGenerations, paused, liveServers, workers, scheduleNext,
	jobEventsTotal, leasesReclaimedTotal, leasesDroppedTotal, prunedJobsTotal, repairsTotal, scheduleSlotsTotal,
	foldedTopics, redisUp, lookDuration, lastSuccess, lookErrorsTotal,
}

var outboxFamilies = []*family{outboxRows, outboxOldest, outboxDead, outboxLater, outboxUp}

// Bounds of the classic buckets, in seconds. Native histograms have no bounds to choose.
var (
	latenessBounds = []float64{.001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}
	durationBounds = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}
	callBounds     = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
)

func (f *family) counters() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.name, Help: f.help}, f.labels)
}

func (f *family) gauges() *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: f.name, Help: f.help}, f.labels)
}

// histograms returns histograms with classic and native buckets. A native bucket is at most a tenth
// wider than the one before. A series keeps at most 160 of them, and begins again after an hour if
// it needs more.
func (f *family) histograms(bounds []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: f.name, Help: f.help, Buckets: bounds,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}, f.labels)
}
