// The options of a job. A new one is written down in these places: a field of record.Options with
// its encoding (internal/record/options.go, job.go), Job or JobInfo (job.go), a part of a
// schedule's job (schedule.go, schedule_info.go), a flag and the export of the command line
// (enqueue.go, export.go, schedule_edit.go, schedule_sync.go of cmd/delayq/internal/cli), the form
// of the page (web), docs/protocol.md, and wherever it acts.

package delayq

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A JobOption sets one property of a job. If two options contradict each other, the last one wins.
// Every JobOption is a [ScheduleOption] too.
type JobOption interface {
	ScheduleOption
	applyJob(*jobOptions)
}

type jobOption func(*jobOptions)

func (f jobOption) applyJob(o *jobOptions) { f(o) }

func (f jobOption) applySchedule(d *definition) { d.set(f) }

var errNilJobOption = errors.New("a job option is nil")

// jobOptions holds what job options set: the values that are stored with the job, what it replaces,
// and the complaints. Durations are rounded up to whole milliseconds.
type jobOptions struct {
	record.Options
	replace commit.Replacing
	wait    int64 // of Debounce, ms
	longest int64 // of Debounce: ms for which a burst puts the job off at most
	unless  bool  // UnlessRunning is given
	window  int64 // ms for which the job closes its ID; 0: it does not
	guard   *edit // nil: it replaces any job
	due     bool  // ProcessAt or ProcessIn was given
	errs    []error
}

// defaultJob holds the options of a job that sets none.
var defaultJob = jobOptions{Options: record.Options{Retry: record.NotSet}}

// defaultRun holds the values that apply to a run if neither the job nor the Defaults of its
// handler set them. It is the only place where these defaults are written.
var defaultRun = record.Options{
	Retry:      Unlimited,
	BackoffMin: (2 * time.Second).Milliseconds(),
	BackoffMax: (4096 * time.Second).Milliseconds(),
}

// DefaultsOption is the type of [Defaults]: an option of clients, of typed topics and of single
// handlers.
type DefaultsOption []JobOption

// Defaults sets options for jobs that do not set them themselves. The options of a job take
// precedence over the Defaults of its [Topic], these over those of the client, these over those of
// the handler, and these over those of the server. If Defaults is given several times in one place,
// the last one of each option applies.
//
// Passed to [NewClient] they apply to all jobs of the client, from [Client.Enqueue],
// [Client.EnqueueBatch] and [Client.Schedule], through typed topics too. Passed to [NewTopic] they
// apply to the jobs of [Topic.Enqueue], [Topic.Job] and [Topic.Schedule]. They are stored in these
// jobs, so they apply wherever the jobs run. ProcessAt, ProcessIn, ProcessAtEach, ExpireAt,
// Replace, ReplaceDead, UnlessRunning, Debounce, Latest and UniqueFor belong to a single job: in
// Defaults they are errors.
//
// Passed to [Server.Handle] they apply to the runs of all jobs of the topic, from whatever client,
// and do not change the stored jobs. Passed to [NewServer] they apply so to the runs of all topics.
// Only Retry, Backoff, Timeout and Retention are allowed in both. With a default Retry, a server
// takes a job only when it has a free worker, because a crash counts as a failure of all taken
// jobs.
//
// Without any Defaults a job that always fails is retried forever, and one that hangs occupies its
// worker. Retries are unlimited by default because no number of the library's choice is right for
// all jobs: an outage of a day must not bury the jobs of a queue, while nobody looks at its dead
// ones. Defaults(Retry(25), Timeout(time.Hour)) for a client or a server is a good start: with the
// default [Backoff] the last retry is 17 hours after the first failure, and up to a fifth later.
func Defaults(opts ...JobOption) DefaultsOption { return opts }

// apply adds the options to o.
func (d DefaultsOption) apply(o *jobOptions) {
	for _, opt := range d {
		if opt == nil {
			o.fail(errNilJobOption)
			continue
		}
		opt.applyJob(o)
	}
}

// check returns the complaints about Defaults. With run they are those of a handler or a server.
func (d DefaultsOption) check(run bool) (errs []error) {
	o := defaultJob
	d.apply(&o)
	refuse := func(given bool, name, why string) {
		if given {
			o.fail(fmt.Errorf("%s: %s", name, why))
		}
	}
	const each, late = "must be given with each job", "has no effect in the Defaults of a handler or a server"
	refuse(o.DueAt > 0, "ProcessAt", each)
	refuse(o.DueIn > 0, "ProcessIn", each)
	refuse(o.ExpireAt > 0, "ExpireAt", each)
	refuse(o.replace == commit.ReplaceAny, "Replace", each)
	refuse(o.replace == commit.ReplaceDead, "ReplaceDead", each)
	refuse(o.replace == commit.ReplaceDebounce, "Debounce", each)
	refuse(o.replace == commit.ReplaceLatest, "Latest", each)
	refuse(o.unless, "UnlessRunning", each)
	refuse(o.window > 0, "UniqueFor", each)
	refuse(o.guard != nil, "IfUnchanged", each)
	refuse(o.Plan != nil, "ProcessAtEach", each)
	refuse(run && o.ExpireIn > 0, "ExpireIn", late)
	refuse(run && o.Headers != nil, "Header", late)
	refuse(run && o.Key != "", "Key", late)
	refuse(run && o.HeadStart != 0, "Priority", late)
	for _, err := range o.errs {
		errs = append(errs, fmt.Errorf("Defaults: %w", err))
	}
	return errs
}

func (d DefaultsOption) applyClient(o *clientOptions) {
	o.errs = append(o.errs, d.check(false)...)
	d.apply(&o.job)
	o.job.errs = nil // they are in the client's errs
}

func (d DefaultsOption) applyServer(o *serverOptions) {
	o.errs = append(o.errs, d.check(true)...)
	d.apply(&o.job)
	o.job.errs = nil // they are in the server's errs
}

func (d DefaultsOption) applyHandler(o *handlerOptions) {
	o.errs = append(o.errs, d.check(true)...)
	d.apply(&o.job)
}

func (d DefaultsOption) applyTopic(o *topicOptions) {
	o.errs = append(o.errs, d.check(false)...)
	o.defaults = append(o.defaults, d...)
}

// Unlimited is the value of [Retry] for a job that is retried until it completes.
const Unlimited = -1

// Retry limits the job to n retries after its first failure; 0 means that the first failure buries
// it. If a server crashes, every job it had taken counts as failed, even one whose handler had not
// been called. [Snooze] and [Client.Revive] restore the full number of retries. Default: unlimited.
// Range: 0 to 2,147,483,647, or [Unlimited].
func Retry(n int) JobOption {
	return jobOption(func(o *jobOptions) {
		if n < Unlimited || n > maxRetry {
			o.fail(fmt.Errorf("Retry(%d): must be from 0 to %d, or Unlimited", n, maxRetry))
		}
		o.Retry = n
	})
}

// Backoff sets the delays between the attempts of the job. The first failure is followed by the
// delay first. Each further failure doubles the delay, up to limit. Up to a fifth of the delay is
// added at random. [Snooze] and [Client.Revive] restart it, and [RetryIn] chooses another delay.
// Default: 2 s and 4096 s. Range: 1 ms to 100 years, first ≤ limit.
func Backoff(first, limit time.Duration) JobOption {
	return jobOption(func(o *jobOptions) {
		if first < time.Millisecond || limit < first || limit > maxDelay {
			o.fail(fmt.Errorf("Backoff(%v, %v): must be 1ms ≤ first ≤ limit ≤ %v", first, limit, maxDelay))
		}
		o.BackoffMin, o.BackoffMax = ceilMS(first), ceilMS(limit)
	})
}

// Timeout limits every run of the job to d. After d the handler's context is cancelled with cause
// [ErrTimeout]. A handler that ignores its context loses its lease within one lease period, and the
// job runs elsewhere. Default: no limit. Range: 1 ms to 100 years.
func Timeout(d time.Duration) JobOption {
	return jobOption(func(o *jobOptions) {
		o.fail(positive("Timeout", d))
		o.Timeout = ceilMS(d)
	})
}

// ExpireAt drops the job if it has not started by t, by Redis's clock. An [ExpiredHook] is called;
// the handler is not. A retry after that time is dropped too. [Client.Enqueue] and
// [Client.Reschedule] reject a job that would expire before it is due, with [ErrInvalid]. A revived
// job does not expire. Bounds as for [ProcessAt].
func ExpireAt(t time.Time) JobOption {
	return jobOption(func(o *jobOptions) {
		ms, err := instant("ExpireAt", t)
		o.fail(err)
		o.ExpireAt, o.ExpireIn = ms, 0
	})
}

// ExpireIn is [ExpireAt] with the time d after Redis has stored the job, by Redis's clock. Range: 1
// ms to 100 years.
func ExpireIn(d time.Duration) JobOption {
	return jobOption(func(o *jobOptions) {
		o.fail(positive("ExpireIn", d))
		o.ExpireAt, o.ExpireIn = 0, ceilMS(d)
	})
}

// Retention keeps the job as done for d after it completes, so that Get and Jobs return it, and Get
// the output of its run ([Job.SetOutput]). Its ID can be reused immediately. Default: a completed
// job is deleted. Range: 1 ms to 100 years.
func Retention(d time.Duration) JobOption {
	return jobOption(func(o *jobOptions) {
		o.fail(positive("Retention", d))
		o.Retention = ceilMS(d)
	})
}

// Header adds a header to the job. Key and value are any bytes. All headers of a job together have
// at most 16 KiB.
func Header(key, value string) JobOption {
	return jobOption(func(o *jobOptions) {
		if o.Headers == nil {
			o.Headers = make(map[string]string)
		}
		o.Headers[key] = value
	})
}

// Key gives the job a key, such as the ID of a customer or a tenant. Jobs of different keys take
// turns, and the jobs of a topic that have no key take their turns as one more key. So a job waits
// for as many turns as there are keys with ready jobs, and not for all jobs that were ready before
// it. [Client.SetKeyLimits] gives a key more turns, and it limits how many of its jobs run and
// start. Within a key, the earliest due job runs first: see [Priority].
//
// A key costs Redis memory only while it has unfinished jobs, and there may be millions of keys.
// Servers of earlier releases leave such jobs alone, so update the servers before the first client
// uses Key. Default: no key. Range: 1 to 255 bytes.
func Key(key string) JobOption {
	return jobOption(func(o *jobOptions) {
		if n := len(key); n < 1 || n > script.MaxTopicLen {
			o.fail(fmt.Errorf("Key of %d bytes: must have 1 to %d", n, script.MaxTopicLen))
		}
		o.Key = key
	})
}

// Priority gives the job a head start over other jobs of its [Key]: once it is due, it runs as if
// it had been due d earlier. A negative d gives the others a head start. Because it is a time, no
// job waits forever: jobs that fall due more than d later do not overtake it. Priority does not
// make a job run before it is due, and gives its key no more turns. A job without a Key cannot have
// a Priority. [Client.SetPriority] changes it. Default: 0. Range: -24 to 24 hours, in whole
// milliseconds.
func Priority(d time.Duration) JobOption {
	return jobOption(func(o *jobOptions) {
		if d < -maxHeadStart || d > maxHeadStart {
			o.fail(fmt.Errorf("Priority(%v): must be from %v to %v", d, -maxHeadStart, maxHeadStart))
		}
		o.HeadStart = d.Milliseconds()
	})
}

// OptionalHeaders adds headers to the job: all of them, or none if the job has one of the keys
// already or has no room for them. It is meant for an [EnqueueHook], whose headers must neither
// replace those of the caller nor make an enqueue fail. It sees the options before it, and the
// [Defaults].
func OptionalHeaders(headers map[string]string) JobOption {
	return jobOption(func(o *jobOptions) {
		size := headersLen(o.Headers) + headersLen(headers)
		for k := range headers {
			if _, has := o.Headers[k]; has || size > script.MaxHeaderLen {
				return
			}
		}
		for k, v := range headers {
			Header(k, v).applyJob(o)
		}
	})
}

// headersLen returns how many bytes headers have.
func headersLen(headers map[string]string) (size int) {
	for k, v := range headers {
		size += len(k) + len(v)
	}
	return size
}

// Replace atomically replaces any unfinished job with the same ID, whatever its state. If that job
// is running, its worker loses the lease: the handler's context is cancelled with cause
// [ErrReplaced].
//
// A handler can replace its own job if it passes its own context or one derived from it. Then its
// context is not cancelled, and it can continue. Its result does not affect the new job, which may
// already be running.
//
// A job that is due immediately and replaces a ready one keeps its position in the order.
func Replace() JobOption { return jobOption(func(o *jobOptions) { o.replace = commit.ReplaceAny }) }

// ReplaceDead atomically replaces a dead job with the same ID and deletes its errors and attempts.
// If the existing job is in any other state, it is unchanged and the new one is rejected with
// [ErrDuplicate]. Of Replace, ReplaceDead, [Latest] and [Debounce], the last one applies.
func ReplaceDead() JobOption {
	return jobOption(func(o *jobOptions) { o.replace = commit.ReplaceDead })
}

// UnlessRunning restricts [Replace] to a job that is not running. A running job continues, and the
// new one is rejected with [ErrDuplicate]: the State of the [DuplicateError] is [StateRunning].
// UnlessRunning without Replace is an error.
func UnlessRunning() JobOption { return jobOption(func(o *jobOptions) { o.unless = true }) }

func (o *jobOptions) fail(err error) {
	if err != nil {
		o.errs = append(o.errs, err)
	}
}

// newJobOptions applies opts and joins all complaints.
func newJobOptions(opts []JobOption) (jobOptions, error) { return defaultJob.with(opts) }

// with returns o after opts, and the complaints about the result.
func (o jobOptions) with(opts []JobOption) (jobOptions, error) {
	err := o.add(opts)
	return o, err
}

// add adds opts to o, and returns the complaints about the result.
func (o *jobOptions) add(opts []JobOption) error {
	o.Headers = maps.Clone(o.Headers)
	DefaultsOption(opts).apply(o)
	return o.validate()
}

// validate returns the complaints about the options as a whole.
func (o *jobOptions) validate() error {
	if size := headersLen(o.Headers); size > script.MaxHeaderLen {
		o.fail(fmt.Errorf("headers of %d bytes, at most %d are allowed", size, script.MaxHeaderLen))
	}
	if o.HeadStart != 0 && o.Key == "" {
		o.fail(errors.New("Priority: the job has no Key"))
	}
	o.settleReplacing()
	switch {
	case o.Plan != nil && o.due:
		o.fail(errors.New("ProcessAtEach: not with ProcessAt or ProcessIn"))
	case o.Plan != nil && (o.ExpireAt > 0 || o.ExpireIn > 0):
		o.fail(errPlanExpires)
	case o.ExpireAt > 0 && o.DueAt >= o.ExpireAt:
		o.fail(fmt.Errorf("ExpireAt(%v) must be after ProcessAt(%v)", msTime(o.ExpireAt).UTC(), msTime(o.DueAt).UTC()))
	case o.ExpireIn > 0 && o.DueIn >= o.ExpireIn && o.replace == commit.ReplaceDebounce:
		o.fail(fmt.Errorf("ExpireIn(%v) must be longer than the wait of Debounce, %v", ofMS(o.ExpireIn), ofMS(o.wait)))
	case o.ExpireIn > 0 && o.DueIn >= o.ExpireIn:
		o.fail(fmt.Errorf("ExpireIn(%v) must be longer than ProcessIn(%v)", ofMS(o.ExpireIn), ofMS(o.DueIn)))
	}
	return invalid(o.errs)
}

// HandlerDefaults are the values that a server uses in the runs of jobs that do not set them: those
// of the [Defaults] of the topic's handler, then those of the server's, then the built-in ones.
type HandlerDefaults struct {
	Retries                    int // [Unlimited] (-1), or 0 and more
	BackoffFirst, BackoffLimit time.Duration
	Timeout                    time.Duration // 0: none
	Retention                  time.Duration // 0: none
}

// A SettingSource says who has set a [Setting].
type SettingSource string

// The sources of settings.
const (
	// The job has the value, by its own options or by the Defaults of its [Topic] or of its client.
	SetByJob SettingSource = "by the job itself"
	// The job does not say, and the [Defaults] of its handler or of the server do.
	SetByHandler SettingSource = "by its handler"
	// The job does not say. The value is the built-in default, and its handler uses it too.
	SetByDefault SettingSource = "by default"
	// The job does not say, and neither does a live server of its topic. The value is the built-in
	// default.
	SetUnlessByHandler SettingSource = "unless its handler sets it"
)

// A Setting is a value that holds in the runs of a job. [JobInfo.Settings] returns it.
type Setting struct {
	Name  string // retries, backoff, timeout or retention
	Value string // as in "25" or "unlimited", "2s to 1h8m16s", "1h0m0s" or "none"
	By    SettingSource
}

// String returns the setting in words, as in "retries: 25, by its handler".
func (s Setting) String() string { return s.Name + ": " + s.Value + ", " + string(s.By) }

// Settings returns what holds in the next run of the job: its retries, backoff, timeout and
// retention, in this order, each with who has set it. What the job does not set is up to the
// handler of the topic, so it is read from servers, which [Inspector.Servers] returns. If the
// servers of the topic differ, as in the middle of a deploy, a name has a setting for each value.
// [Explanation.Settings] has the same without a further call.
//
// A done job has no settings, and neither has one whose record was not read or cannot be read.
func (info *JobInfo) Settings(servers []ServerInfo) []Setting {
	if info == nil || info.State == StateDone || info.Partial || info.Undecodable != nil {
		return nil
	}
	own := runDefaults(&info.options)
	var handlers []HandlerDefaults
	for _, s := range servers {
		if does := s.Topics[info.Topic].Defaults; does != nil && !slices.Contains(handlers, *does) {
			handlers = append(handlers, *does)
		}
	}
	var list []Setting
	for _, v := range settingValues {
		if info.options.Retry != record.NotSet && v.name == "retries" || v.name != "retries" && v.text(&own) != noSetting {
			list = append(list, Setting{v.name, v.text(&own), SetByJob})
			continue
		}
		builtIn := v.text(&builtInDefaults)
		if len(handlers) == 0 {
			list = append(list, Setting{v.name, builtIn, SetUnlessByHandler})
		}
		for n := range handlers {
			one := Setting{v.name, v.text(&handlers[n]), SetByHandler}
			if one.Value == builtIn {
				one.By = SetByDefault
			}
			if !slices.Contains(list, one) {
				list = append(list, one)
			}
		}
	}
	return list
}

// RetriesLeft returns how many retries a job has left by what holds in its runs, the fewest first
// if its servers differ. It returns nil if that is unknown, and for a done job.
func (friends) RetriesLeft(e *Explanation) (list []int) {
	for _, s := range e.Settings {
		if s.Name != "retries" {
			continue
		}
		job := e.Job.Job
		job.Retries = Unlimited
		if n, err := strconv.Atoi(s.Value); err == nil {
			job.Retries = n
		}
		list = append(list, job.RetriesLeft())
	}
	slices.SortFunc(list, func(a, b int) int { return cmp.Compare(uint(a), uint(b)) }) // unlimited is the most
	return slices.Compact(list)
}

// noSetting is the value of what is not set.
const noSetting = "none"

// builtInDefaults are those of a handler that sets none.
var builtInDefaults = runDefaults(&defaultRun)

// settingValues are the settings and their values in words.
var settingValues = []struct {
	name string
	text func(d *HandlerDefaults) string
}{
	{"retries", func(d *HandlerDefaults) string {
		if d.Retries < 0 {
			return "unlimited"
		}
		return strconv.Itoa(d.Retries)
	}},
	{"backoff", func(d *HandlerDefaults) string {
		if d.BackoffLimit == 0 {
			return noSetting
		}
		return d.BackoffFirst.String() + " to " + d.BackoffLimit.String()
	}},
	{"timeout", func(d *HandlerDefaults) string { return durationOrNone(d.Timeout) }},
	{"retention", func(d *HandlerDefaults) string { return durationOrNone(d.Retention) }},
}

func durationOrNone(d time.Duration) string {
	if d == 0 {
		return noSetting
	}
	return d.String()
}

// runDefaults returns what options say of runs.
func runDefaults(o *record.Options) HandlerDefaults {
	return HandlerDefaults{
		Retries: o.Retries(), BackoffFirst: ofMS(o.BackoffMin), BackoffLimit: ofMS(o.BackoffMax),
		Timeout: ofMS(o.Timeout), Retention: ofMS(o.Retention),
	}
}
