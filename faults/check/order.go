package check

import (
	"cmp"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/delayq/delayq/faults/rig"
)

// order holds the jobs of each key of a topic to their order: one of them has a lease at a time,
// and none starts while one that comes before it is unfinished.
//
// Times of leases are compared by Redis's clock. The start of a run shows the end of its lease, and
// so a moment at which it certainly had one. An extension only makes that moment a later one of the
// same lease. Because no two leases of a key overlap, these moments are in the order of the leases.
func (c *checker) order(topic string, l Limits) {
	byKey := map[string][]*job{}
	for _, at := range slices.SortedFunc(maps.Keys(c.jobs), comparePlaces) {
		if at.topic != topic {
			continue
		}
		for _, inc := range slices.Sorted(maps.Keys(c.jobs[at])) {
			j := c.jobs[at][inc]
			if len(j.runs) > 0 && j.runs[0].Key != "" {
				byKey[j.runs[0].Key] = append(byKey[j.runs[0].Key], j)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		c.oneLease(key, byKey[key])
		c.inTurn(key, byKey[key], l.Halt)
	}
}

// leased returns a moment at which a run certainly had its lease, by Redis's clock in µs.
func (c *checker) leased(r *run) int64 { return r.Fence - c.o.Lease.Microseconds() }

// oneLease checks that no run of a key was given a lease while another one certainly had one.
func (c *checker) oneLease(key string, jobs []*job) {
	type lease struct {
		from, to int64
		j        *job
		r        *run
	}
	var list []lease
	for _, j := range jobs {
		for _, r := range j.runs {
			to := r.Fence // unless it is given up: a process that is gone or stands still cannot do that
			switch {
			case r.holding():
				to = r.end.Wall * 1000
			case len(j.ended)+len(j.moves)+len(j.gaveWay) > 0 || j.unknown:
				to = 0 // a call may have taken it
			case r.end != nil:
				to = min(to, r.end.Wall*1000)
			}
			list = append(list, lease{c.leased(r), to, j, r})
		}
	}
	slices.SortStableFunc(list, func(a, b lease) int { return cmp.Compare(a.from, b.from) })
	var last lease
	for i, next := range list {
		if i > 0 && next.from < last.to-tick.Microseconds() && !c.damaged(next.j.topic, last.r.Mono, next.r.Mono) {
			c.bad("I26", next.j, "was taken by %s while attempt %d of %q in %s had the lease of the key %q for %d µs more",
				next.r.Proc, last.r.Attempt, last.j.id, last.r.Proc, key, last.to-next.from)
		}
		if next.to > last.to {
			last = next
		}
	}
}

// promoted is how far apart the due times of two jobs are at least if one is certainly before the
// other one: Redis keeps both in whole milliseconds.
const promoted = int64(2 * tick)

// inTurn checks that no job was taken for the first time before all runs of those that come before
// it.
//
// A job that was enqueued for at once is before all others that are due after the reply. Jobs with
// a delay are moved to their key in the order of their due times, so their order is compared among
// themselves. Those that were rescheduled, or enqueued by Again or a schedule, are left out.
func (c *checker) inTurn(key string, jobs []*job, halt bool) {
	type turn struct {
		j       *job
		known   int64 // when the job certainly has its place, monotonic
		over    int64 // when the others may run, by Redis's clock in µs
		overall *turn // of this one and all with an earlier known that which is over last
	}
	var atOnce, delayed []*turn
	for _, j := range jobs {
		if j.enqueue.outcome != rig.OK || len(j.moves) > 0 || j.from != nil || j.by != nil || j.schedule != nil {
			continue
		}
		t := &turn{j: j, known: j.enqueue.done + j.enqueue.Delay*int64(time.Millisecond), over: c.over(j, halt)}
		switch {
		case j.enqueue.Delay == 0:
			atOnce = append(atOnce, t)
		case !j.enqueue.Row: // a late row can be due when it is sent
			delayed = append(delayed, t)
		}
	}
	for _, list := range [][]*turn{atOnce, delayed} {
		slices.SortStableFunc(list, func(a, b *turn) int { return cmp.Compare(a.known, b.known) })
		for i, t := range list {
			t.overall = t
			if i > 0 && list[i-1].overall.over > t.over {
				t.overall = list[i-1].overall
			}
		}
	}
	judge := func(t *turn, before []*turn, gap int64) {
		if t.j.enqueue.Op != rig.OpEnqueue {
			return // it may have the place of the one that it has replaced
		}
		due := t.j.enqueue.Mono + t.j.enqueue.Delay*int64(time.Millisecond) - gap
		n := sort.Search(len(before), func(i int) bool { return before[i].known >= due })
		if n == 0 {
			return
		}
		c.Limited.Ordered++
		first, last := t.j.runs[0], before[n-1].overall
		if at := c.leased(first); last.over > at && !c.damaged(t.j.topic, last.j.enqueue.Mono, first.Mono) {
			c.bad("I26", t.j, "was taken by %s, and the job %q of the key %q comes before it", first.Proc, last.j.id, key)
		}
	}
	for _, t := range atOnce {
		judge(t, atOnce, 0)
	}
	for _, t := range delayed {
		judge(t, atOnce, promoted)
		judge(t, delayed, promoted)
	}
}

// over returns until when the jobs after j must wait at least, by Redis's clock in µs: to its last
// run that is not after a snooze, or if it is dead and halts its key, to the call that takes it
// out.
func (c *checker) over(j *job, halt bool) int64 {
	last := j.runs[0]
	for _, r := range j.runs {
		last = r
		if r.end != nil && r.end.Result == "snooze" {
			break // it has given up its turn
		}
	}
	if !halt || c.o.DeadLimit > 0 || j.unknown || last.settled == nil || last.settled.Result != "buried" {
		return c.leased(last)
	}
	until := forever
	for _, k := range slices.Concat(j.ended, j.gaveWay) {
		until = min(until, k.Wall*1000)
	}
	return until
}
