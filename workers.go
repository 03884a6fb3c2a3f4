package delayq

import (
	"time"

	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

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
	aheadLimit    = 4 * run.TakeLimit
	aheadPatience = 20 * time.Millisecond
	aheadTrip     = 250 * time.Millisecond // longer round trips count as this
	aheadUnknown  = time.Second            // assumed handler duration until some have finished
	aheadBytes    = 4 * script.CallBytes
)

// A window says how long jobs are gathered for a batch. Zero: they are not.
type window struct {
	size  int           // jobs that are enough
	wait  time.Duration // in whole ms
	byKey bool          // a batch has the jobs of one key
}

// workers decides when a taken job may start, and how many more jobs to take. It starts nothing
// itself: its caller does, and guards it with topicServer.mu.
type workers struct {
	count    int  // the Concurrency of the topic; in a pool, the most of its workers
	perCall  int  // most jobs of a call of the handler: the BatchSize; 0: the handler runs single jobs
	cautious bool // nothing is taken ahead: the Defaults of the handler limit the retries
	window   window

	busy     int        // workers that are running a handler
	starting bool       // a worker is being started for the head of next
	stopping bool       // no more handlers may start
	next     []*run.Run // taken, in the order in which they start

	member  *poolMember // nil: the topic has workers of its own
	has     int         // of the workers of the pool, as far as is known
	share   float64     // of the pool, at the last adjustment
	asked   int         // workers that the pool was last asked for
	claimed int         // jobs that are coming and have a worker
	keen    bool        // the first taker has jobs to take, as far as it knows, and lacks workers

	coming int  // jobs requested, or taken and not yet admitted
	more   bool // the last take returned all it asked for, or said that there is more
	hasty  bool // the jobs in next have waited long enough for others of their batch
	many   bool // there is more to take than the last take returned
	batch  int  // jobs that such a take returns

	size        int           // running mean of the size of a job's record, in bytes
	handlerTime time.Duration // running mean of the duration of a call of the handler
	trip        time.Duration // running mean of the round trip of a take, without Redis's work
	limited     bool          // the last job taken has limited retries
	bounded     bool          // the topic has limits, by the last reply
	keysLimited bool          // limits of keys are in force, by the last reply, or may be since then
}

// ahead returns how many jobs may be held beyond those that are running. After a crash, every taken
// job has used an attempt, even if its handler was never called. So jobs with limited retries are
// not taken ahead. take.lua knows only what a job's record says, so nothing is taken ahead if the
// Defaults of the handler limit the retries. A job taken ahead would also use up the limits of a
// topic, and leave the jobs with which it is to be in a batch.
func (w *workers) ahead() int {
	if w.limited || w.cautious || w.bounded || w.window != (window{}) || w.handlerTime == aheadUnknown {
		return 0
	}
	most := min(aheadLimit, aheadBytes/max(w.size, 1))
	horizon := w.horizon()
	if w.member != nil {
		// the topic runs no more than its share while others are busy
		count := min(float64(w.count), float64(w.member.pool.size)*w.share)
		return int(min(float64(horizon)*count*float64(w.seat())/float64(max(w.handlerTime, 1)), float64(most)*min(count, 1)))
	}
	if w.handlerTime <= horizon/aheadLimit {
		return most
	}
	calls := int64(horizon) * int64(w.count) / int64(w.handlerTime)
	return int(min(calls*int64(w.seat()), int64(most)))
}

// seat returns how many jobs a worker runs at a time.
func (w *workers) seat() int { return max(1, w.perCall) }

// places returns how many jobs idle workers can start. A batch that starts next although it is not
// full leaves its other places empty.
func (w *workers) places() int {
	n, seat := w.idle()*w.seat(), w.seat()
	if part := len(w.next) % seat; part > 0 && len(w.next) < n && !w.gathers() {
		n -= seat - part
	}
	return n
}

// gathers reports whether the jobs in next are too few for a batch, and others are on their way.
func (w *workers) gathers() bool {
	if w.window.byKey {
		first := w.group(w.next)
		return first > 0 && first == len(w.next) && first < w.seat() && w.coming > 0 && !w.hasty
	}
	return len(w.next) > 0 && len(w.next) < w.seat() && (w.coming > 0 || w.more) && !w.hasty
}

// begun returns how many jobs a batch has that waits for the jobs of a take. That is for n jobs.
func (w *workers) begun(n int) int {
	if !w.more || w.hasty {
		return 0
	}
	return max(0, len(w.next)+w.coming-n) % w.seat()
}

// group returns how many jobs at the head of a list make a batch: of any keys, or of one.
func (w *workers) group(list []*run.Run) (n int) {
	for n < min(len(list), w.seat()) && (!w.window.byKey || list[n].Options.Key == list[0].Options.Key) {
		n++
	}
	return n
}

// groups returns how many batches a list makes.
func (w *workers) groups(list []*run.Run) (n int) {
	for ; len(list) > 0; n++ {
		list = list[w.group(list):]
	}
	return n
}

// waitsForBatch reports whether a worker is idle only because jobs are gathered for a batch.
func (w *workers) waitsForBatch() bool {
	return w.gathers() && !w.starting && !w.stopping && w.idle() > 0
}

// idle returns the number of workers that run no handler. In a pool, these are the ones that the
// topic has.
func (w *workers) idle() int {
	if w.member != nil {
		return w.has - w.busy
	}
	return w.count - w.busy
}

// needs returns how many workers of the pool the topic needs: for its running handlers, for the
// jobs that it has, and for those that it may take.
func (w *workers) needs() int {
	n := w.busy
	if !w.stopping {
		n += (len(w.next) + w.claimed + w.seat() - 1) / w.seat()
		if w.keen {
			n = w.count
		}
	}
	return min(n, max(w.count, w.busy))
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
	free, ahead, have := w.places(), w.ahead(), len(w.next)+w.coming
	if w.window.byKey { // as many batches as there are workers for
		free, have = w.unclaimed(), 0
	}
	if have > ahead/2 && have >= free {
		return 0
	}
	// Redis may be rejecting the outcomes of finished handlers, so the total is limited.
	most := 2*w.count*w.seat() + 2*aheadLimit - owned - w.coming
	// one take returns no more; the other taker gets the rest of the room
	fit := script.CallBytes / max(w.size, 1)
	return max(0, min(free+ahead-have, most, run.TakeLimit, fit+fit/8+1))
}

// roomForTwo reports whether a second taker can take as many jobs as the last take has returned.
func (w *workers) roomForTwo(owned int) bool { return w.many && w.room(owned) >= w.batch }

// unclaimed returns how many jobs idle workers can start beyond those that are intended for them.
func (w *workers) unclaimed() int {
	if w.window.byKey {
		if w.coming > 0 {
			return 0
		}
		return max(0, w.idle()-w.groups(w.next)) * w.seat()
	}
	coming := w.coming
	if w.member != nil {
		coming = w.claimed // the others are taken ahead
	}
	return max(0, w.places()-len(w.next)-coming)
}

// atCount reports whether the topic has jobs for as many workers as it may have.
func (w *workers) atCount() bool { return (w.count-w.busy)*w.seat() <= len(w.next)+w.coming }

// reserve keeps room for the jobs of a take. It returns how many jobs that is, and how many of them
// can start immediately. There must be room for one job, or with full for a full take.
func (w *workers) reserve(full bool, owned int) (n, free int) {
	free = w.unclaimed()
	if n = w.room(owned); n < 1 || full && n < w.batch {
		return 0, free
	}
	w.coming += n
	w.claimed += min(n, free)
	return n, free
}

// expect notes how many jobs arrived out of those reserved, and whether there are many more.
func (w *workers) expect(reserved, got int, many bool) {
	w.coming += got - reserved
	w.more = got > 0 && (got == reserved || many)
	w.claimed = min(w.claimed, w.coming)
	w.many = many && w.count > 1 && !w.window.byKey // a single worker takes its jobs in their order
	w.batch = max(1, got)
}

// arrived notes that a job has been admitted. Its place in next is that of queue.
func (w *workers) arrived(r *run.Run) {
	w.coming--
	w.claimed = max(0, w.claimed-1)
	w.limited = r.Options.Retry >= 0
	w.size += (int(r.Stored) - w.size) / 8
}

// queue puts a job behind those that wait for a worker.
func (w *workers) queue(r *run.Run) { w.next = append(w.next, r) }

// toStart reports whether the caller must start a worker. Workers start one at a time, each by the
// one before. While handlers are short, a few workers do all the work, and no others are started
// only to find it done.
func (w *workers) toStart() bool {
	if w.starting || w.stopping || w.idle() <= 0 || len(w.next) == 0 || w.gathers() {
		return false
	}
	w.starting = true
	return true
}

// pop removes the job that starts next. It returns nil if there is none, or if none may start.
func (w *workers) pop() *run.Run {
	if w.stopping || w.gathers() {
		return nil
	}
	return w.shift()
}

// shift removes the first job of next. It returns nil if there is none.
func (w *workers) shift() *run.Run {
	if len(w.next) == 0 {
		return nil
	}
	r := w.next[0]
	w.next[0] = nil
	w.next = w.next[1:]
	return r
}

// follows reports whether the first job of next can be in the batch of another one.
func (w *workers) follows(first *run.Run) bool {
	return len(w.next) > 0 && (!w.window.byKey || w.next[0].Options.Key == first.Options.Key)
}

// ran notes the duration of a call of the handler.
func (w *workers) ran(d time.Duration) { w.handlerTime += (d - w.handlerTime) / 8 }

// spill removes the jobs that wait in vain: those that are lost, and those that have no idle
// worker. With all, it also removes those that a worker is being started for.
func (w *workers) spill(all bool) (lost, rest []*run.Run) {
	free := 0
	if !all {
		free = w.idle() * w.seat()
	}
	if w.window.byKey && !all {
		free = 0
		for range w.idle() {
			free += w.group(w.next[free:])
		}
	}
	kept := w.next[:0]
	for _, r := range w.next {
		switch {
		case r.Lost != nil:
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
