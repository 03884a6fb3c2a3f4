package explain

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// is reports whether the job is in a state.
func (f *Facts) is(state string) bool { return f.Job != nil && f.Job.State == state }

// lapsed reports whether the lease of the job is over.
func (f *Facts) lapsed() bool { return f.is(stateRunning) && !f.At.Before(f.Job.LeaseEnd) }

// overdue reports whether the job is due and still in the bucket.
func (f *Facts) overdue() bool { return f.is(stateScheduled) && !f.At.Before(f.Job.Due) }

// Late reports whether the job should be running by its due time, and is not.
func (f *Facts) Late() bool { return f.is(stateReady) || f.overdue() || f.lapsed() }

// reasons returns every reason that holds, the decisive one first, without their texts.
func (f *Facts) reasons() (list []Reason) {
	add := func(some ...Reason) { list = append(list, some...) }
	if f.Finding != "" {
		add(Reason{Code: Orphan, Finding: f.Finding})
	}
	switch {
	case f.Job == nil:
		add(f.missing()...)
		add(f.refusal()...)
	case f.is(stateDead):
		add(Reason{Code: Dead, Since: f.Job.BuriedAt, Attempt: f.Job.Attempt, Error: f.Job.LastError})
	case f.is(stateDone):
		add(Reason{Code: Done, Since: f.Job.FinishedAt, Until: f.Job.KeptUntil, Attempt: f.Job.Attempt})
		add(f.tomb()...)
	case f.Late():
		add(f.held()...)
		add(f.later()...)
	case f.is(stateRunning):
		add(f.ran(Running))
	case f.putOff():
		add(f.later()...)
		add(Reason{Code: DueLater, Until: f.Job.Due})
		add(f.obstacles()...)
	default:
		add(f.expiry()...)
		if waits := f.waitsForSteps(); waits != nil {
			add(*waits)
		} else {
			add(f.scheduled())
		}
		add(f.obstacles()...)
		add(f.later()...)
	}
	if f.Heir != nil {
		add(Reason{Code: Successor, Until: f.Heir.Due, Used: f.Heir.Bytes})
	}
	return list
}

// later returns that a later release has stored the job, if it has.
func (f *Facts) later() []Reason {
	if f.Job.Later == 0 {
		return nil
	}
	return []Reason{{Code: LaterRelease, Version: f.Job.Later}}
}

// putOff reports whether a server has put the job off because a later release has stored it.
func (f *Facts) putOff() bool {
	return f.Job.Later > 0 && f.is(stateScheduled) && f.Job.DueReason == dueSnooze && f.Job.Snoozes == 0
}

// held returns why a job that is late has not started. If servers are live, Redis has lately taken
// their heartbeats, so its refusal is not decisive.
func (f *Facts) held() (list []Reason) {
	add := func(some ...Reason) { list = append(list, some...) }
	if f.lapsed() {
		r := f.ran(LeaseOver)
		r.Since, r.Until = f.Job.LeaseEnd, time.Time{}
		add(r)
	} else {
		add(f.expiry()...)
	}
	if len(f.Takers) == 0 {
		add(f.refusal()...)
	}
	add(f.obstacles()...)
	switch {
	case f.overdue():
		add(f.unpromoted())
	case f.is(stateReady):
		add(f.queued()...)
		if f.since(f.Job.Due) > grace && len(list) == 0 {
			add(f.next())
		}
	}
	if silent := f.silent(); len(silent) > 0 && len(silent) < len(f.Takers) {
		add(f.silence(silent))
	}
	if len(f.Takers) > 0 {
		add(f.refusal()...)
	}
	return list
}

// missing returns why there is no such job.
func (f *Facts) missing() (list []Reason) {
	r := Reason{Code: NotFound}
	if len(f.Acts) > 0 {
		last := f.Acts[0]
		r.By, r.Action, r.Since = last.By, last.Action, last.At
		if last.Cancels {
			list = append(list, Reason{Code: Cancelled, By: last.By, Since: last.At})
		}
	}
	return append(append(list, f.tomb()...), r)
}

// tomb returns that the ID is closed, if it is.
func (f *Facts) tomb() []Reason {
	if f.Free.IsZero() {
		return nil
	}
	return []Reason{{Code: Tomb, Until: f.Free}}
}

// scheduled returns why the job is not due yet.
func (f *Facts) scheduled() Reason {
	r := Reason{Code: DueLater, Until: f.Job.Due, Stage: f.Job.Stage, Stages: f.Job.Stages}
	switch f.Job.DueReason {
	case dueRetry:
		r.Code, r.Attempt = BackingOff, f.Job.Attempt-1
		if r.Error = f.Job.LastError; r.Error != nil {
			r.Since = r.Error.At
		}
	case dueSnooze:
		r.Code, r.Snoozes = Snoozed, f.Job.Snoozes
	case dueBurst:
		r.Code, r.Wait, r.Since, r.Latest = Debounced, f.Job.Silence, f.Job.BurstBegan, f.Job.BurstEnds
	}
	return r
}

// expiry returns whether the job will be dropped.
func (f *Facts) expiry() []Reason {
	end := f.Job.ExpireAt
	if end.IsZero() || f.Job.Revived || f.At.Before(end) && (!f.is(stateScheduled) || f.Job.Due.Before(end)) {
		return nil
	}
	return []Reason{{Code: Expired, Since: end}}
}

// obstacles returns what keeps all jobs of the topic from running.
func (f *Facts) obstacles() (list []Reason) {
	for _, p := range f.Pauses {
		list = append(list, Reason{Code: TopicPaused, By: p.By, Because: p.Because, Since: p.Since, Until: p.Until})
	}
	if h := f.Hold; !h.Until.IsZero() {
		list = append(list, Reason{Code: TopicHeld, Until: h.Until, By: h.By, Because: h.Because})
	}
	switch {
	case len(f.Takers) > 0:
	case len(f.Draining) > 0:
		list = append(list, Reason{Code: Draining, Servers: len(f.Draining)})
	default:
		r := Reason{Code: NoServer, Others: f.Others}
		if f.Last != nil {
			r.Server, r.Host, r.Since = f.Last.ID, f.Last.Host, f.Last.SeenAt
		}
		list = append(list, r)
	}
	if silent := f.silent(); len(silent) > 0 && len(silent) == len(f.Takers) {
		list = append(list, f.silence(silent))
	}
	return list
}

// silent returns the servers that take jobs and whose heartbeats are missing: two at least, so that
// one late heartbeat of a busy server says nothing.
func (f *Facts) silent() (list []Server) {
	for _, s := range f.Takers {
		if f.since(s.SeenAt) > 2*f.Beat+grace {
			list = append(list, s)
		}
	}
	return list
}

// grace is how long a heartbeat may be on its way, and how long a server may need to take a job.
const grace = time.Second

// silence returns what is known about servers whose heartbeats are missing: the newest of them.
func (f *Facts) silence(list []Server) Reason {
	r := Reason{Code: ServerSilent, Servers: len(f.Takers), Others: len(f.Takers) - len(list)}
	for _, s := range list {
		if r.Server == "" || s.SeenAt.After(r.Since) {
			r.Server, r.Host, r.Since = s.ID, s.Host, s.SeenAt
		}
	}
	return r
}

// unpromoted returns why a job that is due is still in the bucket.
func (f *Facts) unpromoted() Reason {
	r := Reason{Code: NotPromoted, Since: f.Job.Due, Ahead: max(0, f.Rank)}
	for _, s := range slices.Concat(f.Takers, f.Draining) {
		if s.Promotes {
			age := s.PromoteAge + f.since(s.SeenAt)
			if r.LoopAge == 0 || age < r.LoopAge {
				r.LoopAge = age
			}
		}
	}
	return r
}

// next returns why the next job has not been taken although no lease is in its way. The workers can
// be busy all the same: with handlers of jobs that were cancelled, or with jobs that have ended in
// this moment. Then they were busy at their last heartbeats.
func (f *Facts) next() Reason {
	running := 0
	for _, s := range f.Takers {
		running += s.Running
	}
	limit := f.limit()
	switch workers := f.workers(); {
	case workers > 0 && running >= workers:
		return f.busy()
	case limit > 0 && running >= limit:
		return Reason{Code: TopicLimit, Running: limit, Limit: int64(limit)}
	}
	return f.untaken()
}

// untaken says that a job has not been taken although nothing is in its way.
func (f *Facts) untaken() Reason {
	r := Reason{Code: NotTaken, Since: f.Job.Due, Servers: len(f.Takers), Workers: f.workers()}
	r.Running = min(int(f.running()), r.Workers)
	for _, s := range f.Takers {
		if age := f.since(s.SeenAt); r.Server == "" || age < r.LoopAge {
			r.Server, r.Host, r.LoopAge = s.ID, s.Host, age
		}
	}
	return r
}

// since returns the time since an instant.
func (f *Facts) since(t time.Time) time.Duration { return max(0, f.At.Sub(t)) }

// queued returns why a ready job has not been taken.
func (f *Facts) queued() (list []Reason) {
	if f.KeyPaused {
		list = append(list, Reason{Code: KeyPaused})
	} else if !f.KeyHeld.IsZero() {
		list = append(list, Reason{Code: KeyHeld, Until: f.KeyHeld})
	}
	switch own := f.Ration; {
	case f.Parked.IsZero():
	case f.Blocker != "":
		list = append(list, Reason{Code: KeyBlocked, Job: f.Blocker, Until: f.Blocked})
	case own.Running > 0 && (f.KeyRunning >= int64(own.Running) || f.KeyRunning < 0 && own.Rate == ""):
		list = append(list, Reason{Code: KeyLimit, Running: int(max(0, f.KeyRunning)), Stragglers: int(f.KeyStragglers), Limit: int64(own.Running)})
	case own.Rate != "":
		list = append(list, Reason{Code: KeyRate, Until: f.Parked, Rate: own.Rate})
	default:
		list = append(list, Reason{Code: Gathering, Until: f.Parked})
	}
	if !f.Gather.IsZero() {
		list = append(list, Reason{Code: Gathering, Until: f.Gather})
	}
	limits := f.Limits
	if running := f.Leased + f.Stragglers; limits.Running > 0 && running >= int64(limits.Running) {
		r := Reason{Code: TopicLimit, Running: int(running), Stragglers: int(f.Stragglers), Limit: int64(limits.Running)}
		if f.Part.own() {
			r.Partition, r.Whole = true, int64(f.Part.Limit)
		}
		list = append(list, r)
	}
	if !f.Next.IsZero() {
		list = append(list, Reason{Code: TopicRate, Until: f.Next, Rate: limits.Rate, Ahead: max(0, f.Ahead)})
	}
	if f.workers() > 0 && f.allBusy() {
		list = append(list, f.busy())
	} else if size := f.busyPools(); size > 0 {
		list = append(list, Reason{Code: PoolBusy, Running: size, Workers: size, Servers: len(f.Takers)})
	}
	if f.Before >= 0 {
		if f.Before > 0 || f.Keys > 1 {
			list = append(list, Reason{Code: KeyBehind, Ahead: f.Before, Keys: f.Keys, PerSecond: f.pace()})
		}
		return list
	}
	if more := f.Ahead < 0 && !f.Whole; more || f.Ahead > 0 || f.Ahead == 0 && f.Keys > 1 {
		list = append(list, f.behind(more))
	}
	return list
}

// behind says that other jobs without a key are in front of it: more of them than were searched, or
// that keys take turns.
func (f *Facts) behind(more bool) Reason {
	r := Reason{Code: Behind, Ahead: max(0, f.Ahead), More: more, PerSecond: f.pace(), Partition: f.Part.own()}
	if f.Keys > 1 {
		r.Keys = f.Keys
	}
	switch {
	case more:
		r.Ahead = Look
	case r.PerSecond > 0 && len(f.Pauses) == 0 && r.Keys == 0:
		ahead := float64(r.Ahead)
		if f.Part != nil { // the places take turns
			ahead *= float64(max(1, f.Part.Waiting))
		}
		r.Wait = time.Duration(ahead / r.PerSecond * float64(time.Second))
	}
	return r
}

// busy says that all workers are.
func (f *Facts) busy() Reason {
	r := Reason{Code: AllBusy, Running: f.workers(), Workers: f.workers(), Servers: len(f.Takers)}
	for _, s := range f.Takers {
		for _, job := range s.Longest {
			if job.For > r.For {
				r.Job, r.For, r.Server, r.Host = job.ID, job.For, s.ID, s.Host
			}
		}
	}
	return r
}

// workers returns the number of workers of the servers that take jobs.
func (f *Facts) workers() (n int) {
	for _, s := range f.Takers {
		n += s.Workers
	}
	return n
}

// allBusy reports whether no server can start another job. A batch that is not full occupies its
// worker too. How many run, only the heartbeats say.
func (f *Facts) allBusy() bool {
	capacity, workers, running := 0, 0, 0
	for _, s := range f.Takers {
		capacity += s.Capacity
		workers += s.Workers
		running += s.Running
	}
	return f.running() >= int64(capacity) || capacity > workers && running >= workers
}

// busyPools returns how many workers the pools of the topic have, or 0 if any server that takes
// jobs had an idle worker for it at its last heartbeat.
func (f *Facts) busyPools() (size int) {
	for _, s := range f.Takers {
		if s.Pool == "" || s.PoolRunning < s.PoolSize {
			return 0
		}
		size += s.PoolSize
	}
	return size
}

// pace returns how many jobs the servers take per second, 0 if that is unknown.
func (f *Facts) pace() (perSecond float64) {
	for _, s := range f.Takers {
		if s.Within <= 0 {
			return 0
		}
		perSecond += float64(s.Taken) / s.Within.Seconds()
	}
	return perSecond
}

// ran returns what is known about the run of a leased job. A heartbeat that names the job can be
// older than this run: then its run began before the job was due, stored or lost.
func (f *Facts) ran(code Code) Reason {
	r := Reason{Code: code, Attempt: f.Job.Attempt, Until: f.Job.LeaseEnd}
	if !utf8.ValidString(f.ID) {
		return r // heartbeats have it changed
	}
	after := f.Job.EnqueuedAt
	if f.Job.Due.After(after) {
		after = f.Job.Due
	}
	if last := f.Job.LastError; last != nil && last.At.After(after) {
		after = last.At
	}
	for _, s := range slices.Concat(f.Takers, f.Draining) {
		for _, job := range s.Longest {
			// Redis's times are cut to the millisecond.
			if began := s.SeenAt.Add(-job.For); job.ID == f.ID && !began.Add(time.Millisecond).Before(after) && began.After(r.Since) {
				r.Since, r.Server, r.Host = began, s.ID, s.Host
			}
		}
	}
	return r
}

// refusal returns why Redis refuses writes, as far as INFO tells.
func (f *Facts) refusal() (list []Reason) {
	add := func(code string) *Reason {
		list = append(list, Reason{Code: RedisCannotWrite, Refusal: code})
		return &list[len(list)-1]
	}
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(f.Redis[name], 10, 64) // what is not there is 0
		return n
	}
	used, limit := number("used_memory")-number("mem_not_counted_for_evict"), number("maxmemory")
	if limit > 0 && used >= limit && !strings.HasPrefix(f.Redis["maxmemory_policy"], "allkeys-") {
		full := add("OOM")
		full.Used, full.Limit = used, limit
	}
	// Servers whose heartbeats are here write to the master of this replica. A job that does not
	// exist says nothing about servers.
	live := len(f.Takers)+len(f.Draining)+f.Others > 0
	if f.Redis["role"] == "slave" && !live && f.Job != nil {
		add("READONLY")
	}
	unsaved := f.Redis["aof_enabled"] == "1" && f.Redis["aof_last_write_status"] == "err"
	if unsaved || f.Redis["rdb_last_bgsave_status"] == "err" {
		add("MISCONF")
	}
	if f.Redis["min_slaves_good_slaves"] == "0" {
		add("NOREPLICAS")
	}
	return list
}
