package delayq

import (
	"context"
	"time"
)

// A verb is a way to settle a job.
type verb int

const (
	verbAck verb = iota
	verbExpire
	verbRetry
	verbSnooze
	verbReturn
	verbBury
	verbAgain
)

// verbs says for each verb which script tells Redis, with which words before its rows, and what the
// outcome is called.
var verbs = [...]struct {
	script  *script
	outcome Outcome
	delays  bool // the job is due again after a delay
	nudges  bool // the script may wake the timers
	words   []any
}{
	verbAck:    {ackScript, OutcomeAcked, false, false, []any{string(OutcomeAcked)}},
	verbExpire: {ackScript, OutcomeExpired, false, false, []any{string(OutcomeExpired)}},
	verbAgain:  {againScript, OutcomeAgain, false, true, nil},
	verbRetry:  {retryScript, OutcomeRetried, true, false, nil},
	verbSnooze: {snoozeScript, OutcomeSnoozed, true, false, nil},
	verbReturn: {giveBackScript, OutcomeReturned, false, false, nil},
	verbBury:   {buryScript, OutcomeBuried, false, false, nil},
}

// open adds what a settling script is told before its rows.
func (v verb) open(args []any, k *keys, number string) []any {
	args = append(args, number)
	if verbs[v].nudges {
		return append(args, maxTick.Milliseconds(), controlChannel(k.prefix()), k.topic)
	}
	return append(args, verbs[v].words...)
}

// A row is one job for a settling script.
type row struct {
	run      *run
	verb     verb
	end      time.Time     // of the handler
	delay    time.Duration // of retry and snooze, whole ms
	past     tally         // of retry and snooze: what the moved entry is to carry
	entry    string        // for the error log
	attempts int           // finished attempts that bury adds
	renewal  *renewal      // of again
	err      error         // what the handler returned, for the hooks and the log
	cause    error         // that of the end of the handler's context; nil: it had not ended
	lost     error         // why the job was not the run's any more; its outcome stands for the verb's
}

// as is the row of a run that has lost its job.
func (r row) as(lost error) row {
	r.lost = lost
	return r
}

// tail is what the script is told of the job beside ID and fence.
func (r row) tail(server string) []any {
	switch r.verb {
	case verbAck, verbExpire:
		note := encodeRun(r, verbs[r.verb].outcome, server)
		if keep := r.run.opts.retention; keep > 0 && r.verb == verbAck {
			return []any{keep, netstring(encodeFinished(r, server)), note}
		}
		if note != "" {
			return []any{0, "", note}
		}
	case verbAgain:
		about, keep, n := "", r.run.opts.retention, r.renewal
		if keep > 0 {
			about = netstring(encodeFinished(r, server))
		}
		if _, bare := r.err.(*againError); bare {
			r.err = nil
		}
		return []any{keep, about, encodeRun(r, OutcomeAgain, server), &n.head, &n.tail, &n.when}
	case verbRetry:
		return []any{r.delay.Milliseconds(), r.past.encode(), r.entry, encodeRun(r, OutcomeRetried, server)}
	case verbSnooze:
		return []any{r.delay.Milliseconds(), r.past.encode()}
	case verbBury:
		note := ""
		if r.attempts > 0 || r.entry != "" { // else promote has noted that the run was cut off
			note = encodeRun(r, OutcomeBuried, server)
		}
		return []any{r.attempts, r.entry, note}
	}
	return nil
}

// settleLimit is the most jobs that one call settles, and settlePile from how many on a second call is made beside the first, so that Redis has work
// while the answer to that is on its way.
const (
	settleLimit = 500
	settlePile  = 250
)

// weight is about how many bytes the script moves for the job: the record that is kept, the one
// that is enqueued anew, and the error log, whose entries are taken to be as long as the new one.
func (r row) weight() int {
	weight := len(r.entry) * min(r.run.attempt, mostErrors)
	if (r.verb == verbAck || r.verb == verbAgain) && r.run.opts.retention > 0 {
		weight += r.run.stored
	}
	if r.renewal != nil {
		weight += r.renewal.bytes()
	}
	return weight
}

// callBytes is about how many bytes one call may read, write or answer beyond those of its first
// job: Redis serves nobody else meanwhile.
const callBytes = 1 << 20

// tellLocked puts a row among those Redis is to be told.
func (t *topicServer) tellLocked(r row) {
	r.run.returned = true
	t.rows = append(t.rows, r)
	signal(t.settleReady)
	if len(t.rows) >= settlePile {
		signal(t.pile)
	}
}

// settleLoop tells Redis how jobs ended, those that gathered during one call with the next; the second loop of a topic, when there are so many at least.
// It goes on until every outcome is told: only the end of ctx, after the drain, makes it give up. Then the leases run out and the jobs run again.
func (t *topicServer) settleLoop(ctx context.Context, k *settler, more <-chan struct{}, least int) {
	for {
		if k.number == "" {
			clear(k.list) // jobs that are settled are not to be kept
			k.list = t.gather(k.list[:0], least)
			if len(k.list) == 0 {
				select {
				case <-more:
					continue
				case <-ctx.Done():
					return
				}
			}
			k.number = k.series.next()
		}
		doubt := k.doubt
		k.doubt = true // also if the call ends this goroutine
		err := t.tell(ctx, k.series.id, k.number, k.list)
		if err == nil {
			k.slow.reset()
			k.number, k.doubt = "", false
			continue
		}
		goOn := sleep(ctx, k.slow.next())
		// Others need not wait for what was not carried out. That a repetition was not does not say that
		// the call before it was not.
		k.doubt = !certain(err) || doubt && away(err)
		if !goOn || !k.doubt {
			t.putBack(k.list)
			k.number, k.doubt = "", false
		}
		if !goOn {
			return
		}
	}
}

// A settler is what a settle loop has to remember: the call that is under way or has to be made again.
type settler struct {
	series *series
	number string // of the call; empty: there is none
	list   []row
	doubt  bool // it may have been carried out
	slow   retryPace
}

// gather takes the next rows, if there are so many at least, into list: those of the first one's
// verb, in their order, as long as they weigh at most callBytes beyond the first one. Jobs that are
// given back go to the head of ready. So of more than one call takes the last ones go first, and
// the second loop leaves them to the first.
func (t *topicServer) gather(list []row, least int) []row {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.rows) < least || least > 1 && t.rows[0].verb == verbReturn {
		return list
	}
	verb, skip := t.rows[0].verb, 0
	if verb == verbReturn {
		skip = -settleLimit
		for _, r := range t.rows {
			if r.verb == verb {
				skip++
			}
		}
	}
	rest, beyond, full := t.rows[:0], 0, false
	for _, r := range t.rows {
		if r.verb == verb && len(list) > 0 {
			beyond += r.weight()
			full = full || len(list) == settleLimit || beyond > callBytes
		}
		switch {
		case r.verb != verb || full:
			rest = append(rest, r)
		case skip > 0:
			skip--
			rest = append(rest, r)
		default:
			list = append(list, r)
		}
	}
	clear(t.rows[len(rest):])
	t.rows = rest
	return list
}

func (t *topicServer) putBack(list []row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, list...)
	signal(t.settleReady) // they may be too few for the second loop
}

// tell is one call of a settling script. The outcomes are final when it returns nil.
func (t *topicServer) tell(ctx context.Context, series, number string, list []row) error {
	v := verbs[list[0].verb]
	args := make([]any, 0, 8+3*len(list))
	args = list[0].verb.open(args, t.keys, number)
	t.mu.Lock()
	args = t.group(args, list)
	t.mu.Unlock()

	reply, err := t.exec(ctx, topicCall{script: v.script, jobs: len(list), receipt: t.keys.receipt(series)}, args...)

	letters, ended := t.examine(ctx, reply.text(2)), false
	t.mu.Lock()
	for i := range list {
		r := list[i].run
		r.telling = false
		if err != nil {
			continue
		}
		if i < len(letters) && letters[i] != letterOurs {
			if r.lost == nil {
				r.lost = r.why(letters[i], time.Now())
			}
			list[i].lost = r.lost
		}
		t.dropLocked(r)
		if name, _, triggered, _ := slotOf(r.id); r.scheduled && !triggered && len(t.endedSchedules) < maxEnded {
			t.endedSchedules = append(t.endedSchedules, name)
			ended = true
		}
	}
	t.mu.Unlock()
	if err != nil {
		return err
	}
	soon := false
	for _, r := range list {
		t.outcome(r)
		soon = soon || r.delay < t.server.o.tick
	}
	if ended && t.slotWaits.Load() {
		signal(t.wake)
	}
	if v.delays && soon {
		signal(t.wake) // the timer sleeps until the next tick
	}
	return nil
}

// group adds rows as the scripts read them: groups of fence, number of values, number of jobs, and the ID and the values of each job.
// Jobs that were taken together mostly end together, so the groups are large. While an answer is awaited, the leases are not extended.
func (t *topicServer) group(args []any, list []row) []any {
	fence, width, count, jobs := "", -1, 0, 0
	for i := range list {
		r := list[i].run
		r.telling = true
		tail := list[i].tail(t.server.id)
		if f := r.fences(); f != fence || len(tail) != width {
			fence, width, jobs = f, len(tail), 0
			args = append(args, fence, width, 0)
			count = len(args) - 1
		}
		jobs++
		args[count] = jobs
		args = append(append(args, &r.id), tail...)
	}
	return args
}
