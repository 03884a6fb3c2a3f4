package delayq

import "time"

// Taking ahead. A handler that is much shorter than a round trip to Redis would leave its worker
// idle until the next take is answered. So a server takes more jobs than it has idle workers: as
// many as will start within a horizon, judging by the recent handler durations of the topic. The
// horizon is aheadTime and two and a half times the recent round trip of a take. The next take is
// sent when half of the jobs are left, and these must last until its reply arrives. The server
// takes none ahead when handlers take longer than the horizon times the number of workers. If
// handlers turn out slower, the jobs are given back after three horizons, at least aheadPatience.
// Fewer large jobs are taken ahead: about aheadBytes in total.
const (
	aheadTime = 2 * time.Millisecond
	// the jobs of two calls, and those of the next two, which arrive while the first are admitted
	aheadLimit    = 4 * takeLimit
	aheadPatience = 20 * time.Millisecond
	aheadTrip     = 250 * time.Millisecond // longer round trips count as this
	aheadUnknown  = time.Second            // assumed handler duration until some have finished
	aheadBytes    = 4 * callBytes
)

// workers decides when a taken job may start, and how many more jobs to take. It starts nothing
// itself: its caller does, and guards it with topicServer.mu.
type workers struct {
	count    int  // the Concurrency of the topic
	cautious bool // nothing is taken ahead: the Defaults of the handler limit the retries

	busy     int    // workers that are running a handler
	starting bool   // a worker is being started for the head of next
	stopping bool   // no more handlers may start
	next     []*run // taken, in the order in which they start

	coming int  // jobs requested, or taken and not yet admitted
	many   bool // there is more to take than the last take returned
	batch  int  // jobs that such a take returns

	size        int           // running mean of the size of a job's record, in bytes
	handlerTime time.Duration // running mean of the duration of a handler
	trip        time.Duration // running mean of the round trip of a take, without Redis's work
	limited     bool          // the last job taken has limited retries
	bounded     bool          // the topic has limits, by the last reply
}

// ahead returns how many jobs may be held beyond those that are running. After a crash, every taken
// job has used an attempt, even if its handler was never called. So jobs with limited retries are
// not taken ahead. take.lua knows only what a job's record says, so nothing is taken ahead if the
// Defaults of the handler limit the retries. A job taken ahead would also use up the limits of a
// topic.
func (w *workers) ahead() int {
	if w.limited || w.cautious || w.bounded || w.handlerTime == aheadUnknown {
		return 0
	}
	most := min(aheadLimit, aheadBytes/max(w.size, 1))
	horizon := w.horizon()
	if w.handlerTime <= horizon/aheadLimit {
		return most
	}
	return min(int(int64(horizon)*int64(w.count)/int64(w.handlerTime)), most)
}

// horizon returns how far ahead jobs are taken.
func (w *workers) horizon() time.Duration { return aheadTime + 2*w.trip + w.trip/2 }

// patience returns how long a job taken ahead waits for a worker.
func (w *workers) patience() time.Duration { return max(aheadPatience, 3*w.horizon()) }

// took notes how long a take of n jobs was on its way. The mean falls faster than it rises, because
// a slow machine must not look like a long way.
func (w *workers) took(d time.Duration, n int) {
	trip := min(max(0, d-time.Duration(n)*takeWork), aheadTrip)
	if trip < w.trip {
		w.trip += (trip - w.trip) / 4
	} else {
		w.trip += (trip - w.trip) / 32
	}
}

// takeWork is about what Redis and the reply need for a job of a take.
const takeWork = 4 * time.Microsecond

// room returns how many jobs to take now; 0: none. owned is the number of jobs that the server has
// not settled.
func (w *workers) room(owned int) int {
	free, ahead, have := w.count-w.busy, w.ahead(), len(w.next)+w.coming
	if have > ahead/2 && have >= free {
		return 0
	}
	// Redis may be rejecting the outcomes of finished handlers, so the total is limited.
	most := 2*w.count + 2*aheadLimit - owned - w.coming
	// one take returns no more; the other taker gets the rest of the room
	fit := callBytes / max(w.size, 1)
	return max(0, min(free+ahead-have, most, takeLimit, fit+fit/8+1))
}

// roomForTwo reports whether a second taker can take as many jobs as the last take has returned.
func (w *workers) roomForTwo(owned int) bool { return w.many && w.room(owned) >= w.batch }

// unclaimed returns the number of idle workers that no job is intended for yet.
func (w *workers) unclaimed() int { return max(0, w.count-w.busy-len(w.next)-w.coming) }

// reserve keeps room for the jobs of a take. It returns how many jobs that is, and how many of them
// can start immediately. There must be room for one job, or with full for a full take.
func (w *workers) reserve(full bool, owned int) (n, free int) {
	free = w.unclaimed()
	if n = w.room(owned); n < 1 || full && n < w.batch {
		return 0, free
	}
	w.coming += n
	return n, free
}

// expect notes how many jobs arrived out of those reserved, and whether there are many more.
func (w *workers) expect(reserved, got int, many bool) {
	w.coming += got - reserved
	w.many = many && w.count > 1 // a single worker takes its jobs in their order
	w.batch = max(1, got)
}

// arrived notes that a job has been admitted. Its place in next is that of queue.
func (w *workers) arrived(r *run) {
	w.coming--
	w.limited = r.opts.Retry >= 0
	w.size += (int(r.stored) - w.size) / 8
}

// queue puts a job behind those that wait for a worker.
func (w *workers) queue(r *run) { w.next = append(w.next, r) }

// toStart reports whether the caller must start a worker. Workers start one at a time, each by the
// one before. While handlers are short, a few workers do all the work, and no others are started
// only to find it done.
func (w *workers) toStart() bool {
	if w.starting || w.stopping || w.busy == w.count || len(w.next) == 0 {
		return false
	}
	w.starting = true
	return true
}

// pop removes the job that starts next. It returns nil if there is none, or if none may start.
func (w *workers) pop() *run {
	if len(w.next) == 0 || w.stopping {
		return nil
	}
	r := w.next[0]
	w.next[0] = nil
	w.next = w.next[1:]
	return r
}

// ran notes the duration of a handler.
func (w *workers) ran(d time.Duration) { w.handlerTime += (d - w.handlerTime) / 8 }

// spill removes the jobs that wait in vain: those that are lost, and those that have no idle
// worker. With all, it also removes those that a worker is being started for.
func (w *workers) spill(all bool) (lost, rest []*run) {
	free := 0
	if !all {
		free = w.count - w.busy
	}
	kept := w.next[:0]
	for _, r := range w.next {
		switch {
		case r.lost != nil:
			lost = append(lost, r)
		case len(kept) < free:
			kept = append(kept, r)
		default:
			rest = append(rest, r)
		}
	}
	clear(w.next[len(kept):])
	w.next = kept
	w.handlerTime = aheadUnknown
	return lost, rest
}
