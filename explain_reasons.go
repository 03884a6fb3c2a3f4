package delayq

import (
	"github.com/delayq/delayq/internal/serve"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/delayq/delayq/internal/commit"
)

// reasons returns every reason that holds, the decisive one first.
func (c *circumstances) reasons() (list []Reason) {
	add := func(some ...Reason) { list = append(list, some...) }
	if c.finding != "" {
		add(Reason{Code: ReasonOrphan, Finding: c.finding})
	}
	switch {
	case c.info == nil:
		add(c.missing()...)
		add(c.refusal()...)
	case c.is(StateDead):
		add(Reason{Code: ReasonDead, Since: c.info.BuriedAt, Attempt: c.info.Attempt, Error: c.lastError()})
	case c.is(StateDone):
		add(Reason{Code: ReasonDone, Since: c.info.FinishedAt, Until: c.info.KeptUntil, Attempt: c.info.Attempt})
	case c.late():
		add(c.held()...)
	case c.is(StateRunning):
		add(c.ran(ReasonRunning))
	default:
		add(c.expiry()...)
		add(c.scheduled())
		add(c.obstacles()...)
	}
	return list
}

// held returns why a job that is late has not started. If servers are live, Redis has lately taken
// their heartbeats, so its refusal is not decisive.
func (c *circumstances) held() (list []Reason) {
	add := func(some ...Reason) { list = append(list, some...) }
	if c.lapsed() {
		r := c.ran(ReasonLeaseOver)
		r.Since, r.Until = c.info.LeaseEnd, time.Time{}
		add(r)
	} else {
		add(c.expiry()...)
	}
	if len(c.takers) == 0 {
		add(c.refusal()...)
	}
	add(c.obstacles()...)
	switch {
	case c.overdue():
		add(c.unpromoted())
	case c.is(StateReady):
		add(c.queued()...)
	}
	if len(c.takers) > 0 {
		add(c.refusal()...)
	}
	return list
}

// missing returns why there is no such job.
func (c *circumstances) missing() (list []Reason) {
	r := Reason{Code: ReasonNotFound}
	if len(c.acts) > 0 {
		last := c.acts[0]
		r.By, r.Action, r.Since = last.Actor, last.Action, last.At
		if last.Action == commit.Cancel.Name && last.Count > 0 { // 0: its outcome is unknown
			list = append(list, Reason{Code: ReasonCancelled, By: last.Actor, Since: last.At})
		}
	}
	return append(list, r)
}

// scheduled returns why the job is not due yet.
func (c *circumstances) scheduled() Reason {
	r := Reason{Code: ReasonDueLater, Until: c.info.Due}
	switch c.info.DueReason {
	case DueRetry:
		r.Code, r.Attempt = ReasonBackingOff, c.info.Attempt-1
		if r.Error = c.lastError(); r.Error != nil {
			r.Since = r.Error.At
		}
	case DueSnooze:
		r.Code, r.Snoozes = ReasonSnoozed, c.info.Snoozes
	}
	return r
}

// lastError returns the newest error of the job, or nil.
func (c *circumstances) lastError() *AttemptError {
	if len(c.info.Errors) == 0 {
		return nil
	}
	return &c.info.Errors[len(c.info.Errors)-1]
}

// expiry returns whether the job will be dropped.
func (c *circumstances) expiry() []Reason {
	end := c.info.ExpireAt
	if end.IsZero() || c.revived || c.at.Before(end) && (!c.is(StateScheduled) || c.info.Due.Before(end)) {
		return nil
	}
	return []Reason{{Code: ReasonExpired, Since: end}}
}

// obstacles returns what keeps all jobs of the topic from running.
func (c *circumstances) obstacles() (list []Reason) {
	for _, p := range c.pauses {
		list = append(list, Reason{Code: ReasonTopicPaused, By: p.By, Because: p.Reason, Since: p.Since, Until: p.Until})
	}
	if h := c.hold; !h.until.IsZero() {
		list = append(list, Reason{Code: ReasonTopicHeld, Until: h.until, By: h.by, Because: h.reason})
	}
	switch {
	case len(c.takers) > 0:
	case len(c.draining) > 0:
		list = append(list, Reason{Code: ReasonDraining, Servers: len(c.draining)})
	default:
		r := Reason{Code: ReasonNoServer, Others: len(c.others)}
		if c.last != nil {
			r.Server, r.Host, r.Since = c.last.ID, c.last.Host, c.last.SeenAt
		}
		list = append(list, r)
	}
	return list
}

// unpromoted returns why a job that is due is still in the bucket.
func (c *circumstances) unpromoted() Reason {
	r := Reason{Code: ReasonNotPromoted, Since: c.info.Due, Ahead: max(0, c.rank)}
	for _, s := range slices.Concat(c.takers, c.draining) {
		if age, known := c.status(s).Loops[serve.TurnNames[serve.TurnPromote]]; known {
			age += c.since(s.SeenAt)
			if r.LoopAge == 0 || age < r.LoopAge {
				r.LoopAge = age
			}
		}
	}
	return r
}

// since returns the time since an instant.
func (c *circumstances) since(t time.Time) time.Duration { return max(0, c.at.Sub(t)) }

// queued returns why a ready job has not been taken.
func (c *circumstances) queued() (list []Reason) {
	if c.paused {
		list = append(list, Reason{Code: ReasonKeyPaused})
	} else if !c.until.IsZero() {
		list = append(list, Reason{Code: ReasonKeyHeld, Until: c.until})
	}
	switch own := c.ration; {
	case c.parked.IsZero():
	case c.blocker != "":
		list = append(list, Reason{Code: ReasonKeyBlocked, Job: c.blocker, Until: c.blocked})
	case own.Running > 0 && c.running >= int64(own.Running):
		list = append(list, Reason{Code: ReasonKeyLimit, Running: int(c.running), Limit: int64(own.Running)})
	case own.Rate != (Rate{}):
		list = append(list, Reason{Code: ReasonKeyRate, Until: c.parked, Rate: own.Rate})
	default:
		list = append(list, Reason{Code: ReasonGathering, Until: c.parked})
	}
	if !c.gather.IsZero() {
		list = append(list, Reason{Code: ReasonGathering, Until: c.gather})
	}
	limits := c.hold.limits
	if limits.Running > 0 && c.leased >= int64(limits.Running) {
		list = append(list, Reason{Code: ReasonTopicLimit, Running: int(c.leased), Limit: int64(limits.Running)})
	}
	if !c.hold.next.IsZero() {
		list = append(list, Reason{Code: ReasonTopicRate, Until: c.hold.next, Rate: limits.Rate, Ahead: max(0, c.ahead)})
	}
	workers := c.workers()
	if workers > 0 && c.allBusy() {
		r := Reason{Code: ReasonAllBusy, Running: workers, Workers: workers, Servers: len(c.takers)}
		for _, s := range c.takers {
			for _, job := range c.status(s).Longest {
				if job.Running > r.For {
					r.Job, r.For, r.Server, r.Host = job.ID, job.Running, s.ID, s.Host
				}
			}
		}
		list = append(list, r)
	} else if size := c.busyPools(); size > 0 {
		list = append(list, Reason{Code: ReasonPoolBusy, Running: size, Workers: size, Servers: len(c.takers)})
	}
	if c.before >= 0 {
		if c.before > 0 || c.keys > 1 {
			list = append(list, Reason{Code: ReasonKeyBehind, Ahead: c.before, Keys: c.keys, PerSecond: c.pace()})
		}
		return list
	}
	more := c.ahead < 0 && !c.whole
	if c.ahead <= 0 && !more {
		return list
	}
	r := Reason{Code: ReasonBehind, Ahead: c.ahead, More: more, PerSecond: c.pace()}
	switch {
	case more:
		r.Ahead = explainLook
	case r.PerSecond > 0 && len(c.pauses) == 0:
		r.Wait = time.Duration(float64(r.Ahead) / r.PerSecond * float64(time.Second))
	}
	return append(list, r)
}

// workers returns the number of workers of the servers that take jobs.
func (c *circumstances) workers() (n int) {
	for _, s := range c.takers {
		n += c.status(s).Workers
	}
	return n
}

// allBusy reports whether no server can start another job. A batch that is not full occupies its
// worker too. How many run, only the heartbeats say.
func (c *circumstances) allBusy() bool {
	capacity, workers, running := 0, 0, 0
	for _, s := range c.takers {
		status := c.status(s)
		capacity += status.capacity()
		workers += status.Workers
		running += status.Running
	}
	return c.leased >= int64(capacity) || capacity > workers && running >= workers
}

// busyPools returns how many workers the pools of the topic have, or 0 if any server that takes
// jobs had an idle worker for it at its last heartbeat.
func (c *circumstances) busyPools() (size int) {
	for _, s := range c.takers {
		does, busy := c.status(s), 0
		for _, other := range s.Topics {
			if other.Pool == does.Pool {
				busy += other.Running
			}
		}
		if does.Pool == "" || busy < does.PoolSize {
			return 0
		}
		size += does.PoolSize
	}
	return size
}

// pace returns how many jobs the servers take per second, 0 if that is unknown.
func (c *circumstances) pace() (perSecond float64) {
	for _, s := range c.takers {
		status := c.status(s)
		if status.Within <= 0 {
			return 0
		}
		perSecond += float64(status.Taken) / status.Within.Seconds()
	}
	return perSecond
}

// ran returns what is known about the run of a leased job. A heartbeat that names the job can be
// older than this run: then its run began before the job was due, stored or lost.
func (c *circumstances) ran(code ReasonCode) Reason {
	r := Reason{Code: code, Attempt: c.info.Attempt, Until: c.info.LeaseEnd}
	if !utf8.ValidString(c.id) {
		return r // heartbeats have it changed
	}
	after := c.info.EnqueuedAt
	if c.info.Due.After(after) {
		after = c.info.Due
	}
	if last := c.lastError(); last != nil && last.At.After(after) {
		after = last.At
	}
	for _, s := range slices.Concat(c.takers, c.draining) {
		for _, job := range c.status(s).Longest {
			// Redis's times are cut to the millisecond.
			if began := s.SeenAt.Add(-job.Running); job.ID == c.id && !began.Add(time.Millisecond).Before(after) && began.After(r.Since) {
				r.Since, r.Server, r.Host = began, s.ID, s.Host
			}
		}
	}
	return r
}

// refusal returns why Redis refuses writes, as far as INFO tells.
func (c *circumstances) refusal() (list []Reason) {
	add := func(code string) *Reason {
		list = append(list, Reason{Code: ReasonRedisCannotWrite, Refusal: code})
		return &list[len(list)-1]
	}
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(c.redis[name], 10, 64) // what is not there is 0
		return n
	}
	used, limit := number("used_memory")-number("mem_not_counted_for_evict"), number("maxmemory")
	if limit > 0 && used >= limit && !strings.HasPrefix(c.redis["maxmemory_policy"], "allkeys-") {
		full := add("OOM")
		full.Used, full.Limit = used, limit
	}
	// Servers whose heartbeats are here write to the master of this replica. A job that does not
	// exist says nothing about servers.
	live := len(c.takers)+len(c.draining)+len(c.others) > 0
	if c.redis["role"] == "slave" && !live && c.info != nil {
		add("READONLY")
	}
	unsaved := c.redis["aof_enabled"] == "1" && c.redis["aof_last_write_status"] == "err"
	if unsaved || c.redis["rdb_last_bgsave_status"] == "err" {
		add("MISCONF")
	}
	if c.redis["min_slaves_good_slaves"] == "0" {
		add("NOREPLICAS")
	}
	return list
}
