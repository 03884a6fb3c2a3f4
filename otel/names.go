package delayqotel

import (
	"cmp"
	"runtime/debug"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// SchemaURL is the schema of the OpenTelemetry semantic conventions that all names follow. A change
// of it is in the changelog.
const SchemaURL = semconv.SchemaURL

// ScopeName is the name of the instrumentation scope of all spans and metrics.
const ScopeName = "github.com/delayq/delayq/otel"

// system is the value of messaging.system.
const system = "delayq"

// Values of messaging.operation.name, beside the names of a client's calls.
const (
	opEnqueue = "enqueue"
	opCreate  = "create"
	opProcess = "process"
	opSettle  = "settle"
)

// Attributes of spans that the conventions do not have.
const (
	// AttemptKey is the number of the run, from 1.
	AttemptKey = attribute.Key("messaging.delayq.message.attempt")
	// DueKey is when the job is due, in Unix milliseconds by Redis's clock.
	DueKey = attribute.Key("messaging.delayq.message.delivery_timestamp")
	// LatenessKey is the time from then to the start of the run, in seconds.
	LatenessKey = attribute.Key("messaging.delayq.message.lateness")
	// OutcomeKey is the [delayq.Outcome] of the run. A run whose outcome Redis has not recorded has
	// none.
	OutcomeKey = attribute.Key("messaging.delayq.message.outcome")
	// RetryDelayKey is the time from the end of the run to the next one, in seconds, after a retry,
	// a snooze and an Again.
	RetryDelayKey = attribute.Key("messaging.delayq.retry_delay")
	// StateKey is the [delayq.State] in which a Dequeue found the job.
	StateKey = attribute.Key("messaging.delayq.message.state")
	// ResultKey says why a call of a client was refused: duplicate, not_found, changed, running or
	// dead.
	ResultKey = attribute.Key("messaging.delayq.result")
	// FailedKey is the number of jobs that an EnqueueBatch has not stored.
	FailedKey = attribute.Key("messaging.delayq.batch.failed_count")
	// LinkKey is an attribute of links: creation, or previous_run.
	LinkKey = attribute.Key("messaging.delayq.link")
)

// Values of [LinkKey].
const (
	linkCreation = "creation"
	linkPrevious = "previous_run"
)

// version returns the version of this module in the program.
func version() string { return versionOf(ScopeName) }

// rootVersion returns the version of delayq in the program.
func rootVersion() string { return versionOf("github.com/delayq/delayq") }

func versionOf(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unknown
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path != path {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		return cmp.Or(valid(m.Version), unknown)
	}
	return unknown
}

// unknown is the version of a module that the program does not name.
const unknown = "unknown"
