package workers

import (
	"slices"
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
	AheadTime = 2 * time.Millisecond
	// the jobs of two calls, and those of the next two, which arrive while the first are admitted
	aheadLimit    = 4 * run.TakeLimit
	AheadPatience = 20 * time.Millisecond
	aheadTrip     = 250 * time.Millisecond // longer round trips count as this
	AheadUnknown  = time.Second            // assumed handler duration until some have finished
	aheadBytes    = 4 * script.CallBytes
)

// A Window says how long jobs are gathered for a batch. Zero: they are not.
type Window struct {
	Size  int           // jobs that are enough
	Wait  time.Duration // in whole ms
	ByKey bool          // a batch has the jobs of one key
}

// Workers decides when a taken job may start, and how many more jobs to take. It starts nothing
// itself: its caller does, and guards it with the mutex of the topic.
type Workers struct {
	Count    int  // the Concurrency of the topic; in a pool, the most of its workers
	PerCall  int  // most jobs of a call of the handler: the BatchSize; 0: the handler runs single jobs
	Cautious bool // nothing is taken ahead: the Defaults of the handler limit the retries
	Window   Window
	OnDemand bool // Count is a worker for each run, and one for each job that somebody waits for

	Busy     int        // workers that are running a handler
	Starting bool       // a worker is being started for the head of next
	Stopping bool       // no more handlers may start
	Next     []*run.Run // taken, in the order in which they start
	Later    []*run.Run // taken, each with a worker, until its From; in the order of these

	Member  *Member // nil: the topic has workers of its own
	Has     int     // of the workers of the pool, as far as is known
	Share   float64 // of the pool, at the last adjustment
	Asked   int     // workers that the pool was last asked for
	Claimed int     // jobs that are coming and have a worker
	Keen    bool    // the first taker has jobs to take, as far as it knows, and lacks workers

	Coming int  // jobs requested, or taken and not yet admitted
	more   bool // the last take returned all it asked for, or said that there is more
	Hasty  bool // the jobs in next have waited long enough for others of their batch
	many   bool // there is more to take than the last take returned
	batch  int  // jobs that such a take returns

	size        int           // running mean of the size of a job's record, in bytes
	HandlerTime time.Duration // running mean of the duration of a call of the handler
	trip        time.Duration // running mean of the round trip of a take, without Redis's work
	limited     bool          // the last job taken has limited retries
	Bounded     bool          // the topic has limits, by the last reply
	Far         bool          // its limits are far away, by the last reply
	KeysLimited bool          // limits of keys are in force, by the last reply, or may be since then
	Places      bool          // a limit of running jobs is in force, or may be
	Unsure      bool          // and that is to be looked up
}

// Ahead returns how many jobs may be held beyond those that are running. After a crash, every taken
// job has used an attempt, even if its handler was never called. So jobs with limited retries are
// not taken ahead. take.lua knows only what a job's record says, so nothing is taken ahead if the
// Defaults of the handler limit the retries. A job taken ahead would also use up the limits of a
// topic, unless they are far away, and leave the jobs with which it is to be in a batch.
func (w *Workers) Ahead() int {
	if w.limited || w.Cautious || w.Bounded && !w.Far || w.Window != (Window{}) || w.HandlerTime == AheadUnknown {
		return 0
	}
	most := min(aheadLimit, aheadBytes/max(w.size, 1))
	horizon := w.horizon()
	if w.Member != nil {
		// the topic runs no more than its share while others are busy
		count := min(float64(w.Count), float64(w.Member.Pool.Size)*w.Share)
		return int(min(float64(horizon)*count*float64(w.Seat())/float64(max(w.HandlerTime, 1)), float64(most)*min(count, 1)))
	}
	if w.HandlerTime <= horizon/aheadLimit {
		return most
	}
	calls := int64(horizon) * int64(w.Count) / int64(w.HandlerTime)
	return int(min(calls*int64(w.Seat()), int64(most)))
}

// Seat returns how many jobs a worker runs at a time.
func (w *Workers) Seat() int { return max(1, w.PerCall) }

// places returns how many jobs idle workers can start. A batch that starts next although it is not
// full leaves its other places empty.
func (w *Workers) places() int {
	n, seat := w.Idle()*w.Seat(), w.Seat()
	if part := len(w.Next) % seat; part > 0 && len(w.Next) < n && !w.Gathers() {
		n -= seat - part
	}
	return n
}

// Gathers reports whether the jobs in next are too few for a batch, and others are on their way.
func (w *Workers) Gathers() bool {
	if w.Window.ByKey {
		first := w.group(w.Next)
		return first > 0 && first == len(w.Next) && first < w.Seat() && w.Coming > 0 && !w.Hasty
	}
	return len(w.Next) > 0 && len(w.Next) < w.Seat() && (w.Coming > 0 || w.more) && !w.Hasty
}

// Begun returns the size of the partial batch that a take of n jobs will complete.
func (w *Workers) Begun(n int) int {
	if !w.more || w.Hasty {
		return 0
	}
	return max(0, len(w.Next)+w.Coming-n) % w.Seat()
}

// group returns how many jobs at the head of a list make a batch: of any keys, or of one.
func (w *Workers) group(list []*run.Run) (n int) {
	for n < min(len(list), w.Seat()) && (!w.Window.ByKey || list[n].Options.Key == list[0].Options.Key) {
		n++
	}
	return n
}

// groups returns how many batches a list makes.
func (w *Workers) groups(list []*run.Run) (n int) {
	for ; len(list) > 0; n++ {
		list = list[w.group(list):]
	}
	return n
}

// WaitsForBatch reports whether a worker is idle only because jobs are gathered for a batch.
func (w *Workers) WaitsForBatch() bool {
	return w.Gathers() && !w.Starting && !w.Stopping && w.Idle() > 0
}

// Idle returns the number of workers that run no handler. In a pool, these are the ones that the
// topic has.
func (w *Workers) Idle() int {
	if w.Member != nil {
		return w.Has - w.Busy
	}
	return w.Count - w.Busy
}

// Needs returns how many workers of the pool the topic needs: for its running handlers, for the
// jobs that it has, and for those that it may take.
func (w *Workers) Needs() int {
	n := w.Busy
	if !w.Stopping {
		coming := w.Claimed
		if w.more { // those that are taken ahead will be there, too, and others must not overtake them
			coming = w.Coming
		}
		n += (len(w.Next) + len(w.Later) + coming + w.Seat() - 1) / w.Seat()
		if w.Keen {
			n = w.Count
		}
	}
	return min(n, max(w.Count, w.Busy))
}

// horizon returns how far ahead jobs are taken.
func (w *Workers) horizon() time.Duration { return AheadTime + 2*w.trip + w.trip/2 }

// Patience returns how long a job taken ahead waits for a worker.
func (w *Workers) Patience() time.Duration { return max(AheadPatience, 3*w.horizon()) }

// Delay returns how long after its take a job taken ahead may start, if the topic has a rate.
func (w *Workers) Delay() time.Duration { return max(AheadPatience, 2*w.horizon()) }

// Took notes how long a take of n jobs was on its way. The mean falls faster than it rises, because
// a slow machine must not look like a long way.
func (w *Workers) Took(d time.Duration, n int) {
	trip := min(max(0, d-time.Duration(n)*takeWork), aheadTrip)
	if trip < w.trip {
		w.trip += (trip - w.trip) / 4
	} else {
		w.trip += (trip - w.trip) / 32
	}
}

// takeWork is about what Redis and the reply need for a job of a take.
const takeWork = 4 * time.Microsecond

// Room returns how many jobs to take now; 0: none. owned is the number of jobs that the server has
// not settled.
func (w *Workers) Room(owned int) int {
	free, ahead, have := w.places(), w.Ahead(), len(w.Next)+len(w.Later)+w.Coming
	if w.Window.ByKey { // as many batches as there are workers for
		free, have = w.Unclaimed(), 0
	}
	if have > ahead/2 && have >= free {
		return 0
	}
	// Redis may be rejecting the outcomes of finished handlers, so the total is limited.
	most := 2*w.Count*w.Seat() + 2*aheadLimit - owned - w.Coming
	// one take returns no more; the other taker gets the rest of the room
	fit := script.CallBytes / max(w.size, 1)
	return max(0, min(free+ahead-have, most, run.TakeLimit, fit+fit/8+1))
}

// RoomForTwo reports whether a second taker can take as many jobs as the last take has returned.
func (w *Workers) RoomForTwo(owned int) bool { return w.many && w.Room(owned) >= w.batch }

// Unclaimed returns how many jobs idle workers can start beyond those that are intended for them.
func (w *Workers) Unclaimed() int {
	if w.Window.ByKey {
		if w.Coming > 0 {
			return 0
		}
		return max(0, w.Idle()-w.groups(w.Next)) * w.Seat()
	}
	coming := w.Coming
	if w.Member != nil {
		coming = w.Claimed // the others are taken ahead
	}
	return max(0, w.places()-len(w.Next)-len(w.Later)-coming)
}

// CanTake reports whether the topic has a worker for a job that it takes now, or gets one of its
// pool.
func (w *Workers) CanTake() bool {
	return w.Unclaimed() > 0 || w.Member != nil && !w.AtCount() && w.Member.Pool.spare()
}

// AtCount reports whether the topic has jobs for as many workers as it may have.
func (w *Workers) AtCount() bool {
	return (w.Count-w.Busy)*w.Seat() <= len(w.Next)+len(w.Later)+w.Coming
}

// Reserve keeps room for the jobs of a take. It returns how many jobs that is, and how many of them
// can start immediately. There must be room for one job, or with full for a full take.
func (w *Workers) Reserve(full bool, owned int) (n, free int) {
	free = w.Unclaimed()
	if n = w.Room(owned); n < 1 || full && n < w.batch {
		return 0, free
	}
	w.Coming += n
	w.Claimed += min(n, free)
	return n, free
}

// Expect notes how many jobs arrived out of those reserved, and whether there are many more.
func (w *Workers) Expect(reserved, got int, many bool) {
	w.Coming += got - reserved
	w.more = got > 0 && (got == reserved || many)
	w.Claimed = min(w.Claimed, w.Coming)
	w.many = many && w.Count > 1 && !w.Window.ByKey // a single worker takes its jobs in their order
	w.batch = max(1, got)
}

// Arrived notes that a job has been admitted. Its place in next is that of queue.
func (w *Workers) Arrived(r *run.Run) {
	w.Coming--
	w.Claimed = max(0, w.Claimed-1)
	w.limited = r.Options.Retry >= 0
	w.size += (int(r.Stored) - w.size) / 8
}

// Queue puts a job behind those that wait for a worker, or if its rates let it start later only,
// among those that wait for that.
func (w *Workers) Queue(r *run.Run, now time.Time) {
	if !r.From.After(now) {
		w.Next = append(w.Next, r)
		return
	}
	i := len(w.Later)
	for i > 0 && w.Later[i-1].From.After(r.From) {
		i--
	}
	w.Later = slices.Insert(w.Later, i, r)
}

// Ripen queues the jobs that may start from now on. It returns when the next one may; zero: there
// is none.
func (w *Workers) Ripen(now time.Time) (next time.Time) {
	n := 0
	for n < len(w.Later) && !w.Later[n].From.After(now) {
		n++
	}
	w.Next = append(w.Next, w.Later[:n]...)
	w.Later = slices.Delete(w.Later, 0, n)
	if len(w.Later) > 0 {
		next = w.Later[0].From
	}
	return next
}

// ToStart reports whether the caller must start a worker. Workers start one at a time, each by the
// one before. While handlers are short, a few workers do all the work, and no others are started
// only to find it done.
func (w *Workers) ToStart() bool {
	if w.Starting || w.Stopping || w.Idle() <= 0 || len(w.Next) == 0 || w.Gathers() {
		return false
	}
	w.Starting = true
	return true
}

// Pop removes the job that starts next. It returns nil if there is none, or if none may start.
func (w *Workers) Pop() *run.Run {
	if w.Stopping || w.Gathers() {
		return nil
	}
	return w.Shift()
}

// Shift removes the first job of next. It returns nil if there is none.
func (w *Workers) Shift() *run.Run {
	if len(w.Next) == 0 {
		return nil
	}
	r := w.Next[0]
	w.Next[0] = nil
	w.Next = w.Next[1:]
	return r
}

// Follows reports whether the first job of next can be in the batch of another one.
func (w *Workers) Follows(first *run.Run) bool {
	return len(w.Next) > 0 && (!w.Window.ByKey || w.Next[0].Options.Key == first.Options.Key)
}

// Ended notes that the handler of a worker has ended. On demand the worker was for that job only.
// If it is one of a pool, the pool knows that.
func (w *Workers) Ended() {
	w.Busy--
	if w.OnDemand && w.Member == nil {
		w.Count--
	}
}

// Ran notes the duration of a call of the handler.
func (w *Workers) Ran(d time.Duration) { w.HandlerTime += (d - w.HandlerTime) / 8 }

// Spill removes the jobs that wait in vain: those that are lost, and those that have no idle
// worker. With all, it also removes those that a worker is being started for, and those that wait
// for their time.
func (w *Workers) Spill(all bool) (lost, rest []*run.Run) {
	if all {
		w.Next, w.Later = append(w.Next, w.Later...), nil
	}
	free := 0
	if !all {
		free = max(0, w.Idle()-len(w.Later)) * w.Seat()
	}
	if w.Window.ByKey && !all {
		free = 0
		for range w.Idle() {
			free += w.group(w.Next[free:])
		}
	}
	kept := w.Next[:0]
	for _, r := range w.Next {
		switch {
		case r.Lost != nil:
			lost = append(lost, r)
		case len(kept) < free:
			kept = append(kept, r)
		default:
			rest = append(rest, r)
		}
	}
	clear(w.Next[len(kept):])
	w.Next = kept
	w.HandlerTime = AheadUnknown
	return lost, rest
}
