package main

import "fmt"

const howto = "https://github.com/delayq/delayq/blob/main/docs/howto/monitoring.md"

// The metrics of the queue come from a collector. Several collectors export the same numbers, so
// max makes one of them. Those of processes are each process's own, and have no prefix.

// state selects a metric of the queue, once for each value of the labels.
func state(metric, labels string, more ...string) string {
	return fmt.Sprintf(`max by (%s) (%s{%s})`, labels, metric, chosen(more))
}

// sum adds up such a metric for the values of a label. Without a label, it adds up everything.
func sum(label, metric, labels string, more ...string) string {
	return add(label) + " (" + state(metric, labels, more...) + ")"
}

// flow is the rate of a counter of the queue, added up for the values of a label.
func flow(label, metric, labels string, more ...string) string {
	return fmt.Sprintf(`%s (max by (%s) (rate(%s{%s}[$__rate_interval])))`, add(label), labels, metric, chosen(more))
}

// rate is that of a counter of processes, added up for the values of a label.
func rate(label, metric string, more ...string) string {
	matchers := `topic=~"$topic"`
	for _, m := range more {
		matchers += "," + m
	}
	return fmt.Sprintf(`%s (rate(%s{%s}[$__rate_interval]))`, add(label), metric, matchers)
}

func add(label string) string {
	if label == "" {
		return "sum"
	}
	return "sum by (" + label + ")"
}

func chosen(more []string) string {
	matchers := `prefix=~"$prefix",topic=~"$topic"`
	for _, m := range more {
		matchers += "," + m
	}
	return matchers
}

// box selects a metric of outboxes, once for each outbox.
func box(metric string) string {
	return fmt.Sprintf(`max by (outbox) (%s{outbox=~"$outbox"})`, metric)
}

// quantile is one of a histogram of processes.
func quantile(q, metric string) string {
	return fmt.Sprintf(`histogram_quantile(%s, %s)`, q, rate("le", metric+"_bucket"))
}

const (
	topics = "prefix, topic"
	perS   = "suffix:/s"
	failed = `outcome=~"retried|buried"`
	ended  = `outcome=~"acked|again|snoozed|retried|buried"`
)

func panels() []object {
	g := &grid{}

	g.row("Now")
	g.add(stat("Overdue jobs", "Jobs that are due and have not started. This is the number to scale on.",
		"short", sum("", "delayq_overdue_jobs", topics), levels{yellow: 100, red: 1000}), 4, 4)
	g.add(stat("Oldest overdue", "How long the job that waits the longest has been due.",
		"s", "max ("+state("delayq_oldest_overdue_seconds", topics)+")", levels{yellow: 10, red: 60}), 4, 4)
	g.add(stat("Busy workers", "Share of the workers of all servers that have a job.",
		"percentunit", sum("", "delayq_jobs", topics, `state="running"`)+" / "+sum("", "delayq_workers", topics), levels{yellow: 0.8, red: 0.95}), 4, 4)
	g.add(stat("Dead jobs", "Jobs that will not run again unless somebody revives them.",
		"short", sum("", "delayq_jobs", topics, `state="dead"`), levels{yellow: 1, red: 1000}), 4, 4)
	g.add(stat("Lateness p99", "99 of 100 runs started at most this long after their job was due.",
		"s", quantile("0.99", "delayq_lateness_seconds"), levels{yellow: 0.25, red: 1}), 4, 4)
	g.add(stat("Failed runs", "Share of the finished runs that ended in a retry or a burial.",
		"percentunit", rate("", "delayq_runs_total", failed)+" / "+rate("", "delayq_runs_total", ended), levels{yellow: 0.05, red: 0.2}), 4, 4)

	g.row("Flow")
	g.add(graph("In and out", "Jobs that were enqueued, and what became of jobs. Redis counts, so this is the whole queue.", perS,
		curve{"{{event}}", flow("event", "delayq_job_events_total", topics+", event",
			`event=~"enqueued|acked|again|retried|snoozed|buried|cancelled|expired"`)}), 12, 8)
	g.add(stacked(graph("Jobs by state", "Jobs in the queue. Scheduled jobs are not due yet, and ready jobs wait for a worker.", "short",
		curve{"{{state}}", sum("state", "delayq_jobs", topics+", state")})), 12, 8)
	g.add(graph("Overdue jobs by topic", "Jobs that are due and have not started.", "short",
		curve{"{{topic}}", sum("topic", "delayq_overdue_jobs", topics)}), 12, 8)
	g.add(graph("Retrying jobs by topic", "Jobs that have failed before and are not dead.", "short",
		curve{"{{topic}}", sum("topic", "delayq_retrying_jobs", topics)}), 12, 8)

	g.row("Time")
	g.add(heat("Lateness", "Runs by the time from the due time of the job to the start of its handler, by Redis's clock.",
		rate("le", "delayq_lateness_seconds_bucket")), 8, 8)
	g.add(limited(graph("Lateness, quantiles", "The dashed line is the goal of the alert DelayqLatenessSLO.", "s",
		curve{"p50", quantile("0.5", "delayq_lateness_seconds")},
		curve{"p95", quantile("0.95", "delayq_lateness_seconds")},
		curve{"p99", quantile("0.99", "delayq_lateness_seconds")}), 1), 8, 8)
	g.add(heat("Run time", "Runs by the time that their handlers took.",
		rate("le", "delayq_run_duration_seconds_bucket")), 8, 8)

	g.row("Ahead")
	g.add(graph("Falls due", "Scheduled jobs that fall due within the next minute, ten minutes, hour and day.", "short",
		curve{"within {{within}}", sum("within", "delayq_due_jobs", topics+", within")}), 8, 8)
	g.add(limited(graph("Load of the next hour",
		"The work of the next hour as a share of what the workers can do: overdue jobs and those that fall due, at the mean run time of the last hour.", "percentunit",
		curve{"{{topic}}", "(" + state("delayq_overdue_jobs", topics) + " + " + state("delayq_due_jobs", topics, `within="1h"`) + ")" +
			" * on (topic) group_left () (sum by (topic) (rate(delayq_run_duration_seconds_sum[1h])) / sum by (topic) (rate(delayq_run_duration_seconds_count[1h])))" +
			" / (3600 * (" + state("delayq_workers", topics) + " > 0))"}), 1), 8, 8)
	g.add(graph("Next slot", "Time until the next slot of the schedules of a topic.", "s",
		curve{"{{topic}}", state("delayq_schedule_next_timestamp_seconds", topics) + " - time()"}), 8, 8)

	g.row("Trouble")
	g.add(graph("Redis calls, p99", "Duration of the slowest kinds of script calls, with the network.", "s",
		curve{"{{script}}", "topk(6, histogram_quantile(0.99, sum by (script, le) (rate(delayq_redis_call_duration_seconds_bucket[$__rate_interval]))))"}), 12, 8)
	g.add(graph("Redis errors and lost leases", "Script calls that failed, and leases that ran out because a server crashed or stalled.", perS,
		curve{"error of {{script}}", "sum by (script) (rate(delayq_redis_errors_total[$__rate_interval])) > 0"},
		curve{"leases lost", flow("", "delayq_leases_reclaimed_total", topics)}), 12, 8)
	g.add(graph("Panics, burials and dropped dead jobs", "Handlers that panicked, jobs that died, and dead jobs that a DeadLimit deleted.", perS,
		curve{"panics of {{topic}}", rate("topic", "delayq_panics_total") + " > 0"},
		curve{"buried", flow("", "delayq_job_events_total", topics, `event="buried"`)},
		curve{"dropped", flow("", "delayq_pruned_jobs_total", topics, `state="dead"`)}), 12, 8)
	g.add(graph("Slots of schedules", "Slots that were fired, skipped because the last run was unfinished, or missed.", perS,
		curve{"{{result}}", flow("result", "delayq_schedule_slots_total", topics+", result")}), 12, 8)

	g.row("Outbox")
	g.add(stat("Oldest row", "How long the oldest committed row has waited for a relay, by the clock of the database.",
		"s", "max ("+box("delayq_outbox_oldest_row_seconds")+")", levels{yellow: 10, red: 60}), 8, 4)
	g.add(stat("Dead rows", "Rows that Redis has refused. Their calls were not made.",
		"short", "sum ("+box("delayq_outbox_dead_rows")+")", levels{yellow: 1, red: 1000}), 8, 4)
	g.add(stat("Unreadable", "Outboxes that no collector can read. The other panels say nothing about them.",
		"short", "count ("+box("delayq_outbox_up")+") - sum ("+box("delayq_outbox_up")+")", levels{red: 1}), 8, 4)
	g.add(graph("Waiting rows", "Committed rows that wait for a relay. A large transaction writes many at once.", "short",
		curve{"{{outbox}}", box("delayq_outbox_rows")}), 8, 8)
	g.add(limited(graph("Age of the oldest row", "The dashed line is the bound of the alert DelayqOutboxOld.", "s",
		curve{"{{outbox}}", box("delayq_outbox_oldest_row_seconds")}), 60), 8, 8)
	g.add(graph("Rows beyond the horizon", "Rows of jobs of the far future, which stay in the database until they are due soon.", "short",
		curve{"{{outbox}}", box("delayq_outbox_later_rows")}), 8, 8)
	return g.list
}
