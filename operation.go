package delayq

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// An operation is one call of a client about one job, on its way to Redis.
type operation struct {
	kind      *kind
	topic, id string
	fresh     *enqueueing   // of an enqueue
	move      *rescheduling // of a reschedule
	known     string        // how the caller knows the job, as lua/prelude/expect.lua reads it; empty: any job
	when      string        // of a revive: due time for the script; empty: now
	reason    string        // of a bury

	done chan struct{} // receives one value when the operation is settled; nil: nobody waits
	sent bool          // guarded by commit.mu: it is too late to take it out of pending
	left bool          // guarded by commit.mu: its caller does not wait any more

	settled     bool     // the rest is the outcome
	err         error    // why Redis has not said how the call has ended
	now         int64    // Redis's clock when it was carried out
	letter      byte     // what the script says of the job
	since       int64    // of a job that is dead and has the ID of an enqueue: when it was buried, Unix ms
	row         []string // of a get: the columns of the job
	unconfirmed error    // of an enqueue: too few replicas have confirmed it
}

// An enqueueing is what an operation stores.
type enqueueing struct {
	nonce      record.Nonce
	head, tail string // of the record
	when       string // due time for the script, and what the job replaces
	opts       record.Options
	replace    replacing
}

// A rescheduling is what an operation changes.
type rescheduling struct {
	when  string // due time for the script
	due   record.Options
	known record.Job // of a job that can expire: what the script has returned
	asked int        // how often it has returned that
}

// A kind is one of the calls that share flights. One call of its script carries many operations.
type kind struct {
	name   string // in errors
	script *script.Script
	which  func(list []*operation) *script.Script // if not always script
	reads  bool                                   // it writes nothing, so that its outcome is never unknown

	// words returns the arguments before those of the jobs, without the number of the call.
	words func(g *commit) []any
	// job appends the arguments about one job; nil: its ID.
	job func(args []any, o *operation) []any
	// read settles operations by the reply of the script. It leaves out those that the script has
	// left for another call.
	read func(g *commit, list []*operation, r script.Reply)
}

// kinds lists all, those with large replies last.
var kinds = []*kind{enqueueKind, cancelKind, deleteKind, rescheduleKind, reviveKind, buryKind, getKind}

var (
	enqueueKind = &kind{
		name: "enqueue", script: script.Enqueue, read: readEnqueued,
		which: func(list []*operation) *script.Script {
			which := script.Enqueue
			for _, o := range list {
				switch {
				case o.fresh.replace != replaceNone:
					return script.Replace
				case o.fresh.opts.Key != "":
					which = script.EnqueueKeyed
				}
			}
			return which
		},
		words: func(g *commit) []any { return g.words },
		job: func(args []any, o *operation) []any {
			return append(args, &o.id, &o.fresh.head, &o.fresh.tail, &o.fresh.when)
		},
	}
	cancelKind = &kind{
		name: "cancel", script: script.Cancel, read: readStates,
		words: func(g *commit) []any { return g.words[1:] },
		job:   func(args []any, o *operation) []any { return append(args, &o.id, &o.known) },
	}
	deleteKind = &kind{
		name: "delete", script: script.Delete, read: readStates,
		words: func(*commit) []any { return nil },
		job:   func(args []any, o *operation) []any { return append(args, &o.id, &o.known) },
	}
	rescheduleKind = &kind{
		name: "reschedule", script: script.Reschedule, read: readRescheduled,
		words: func(g *commit) []any { return g.words },
		job: func(args []any, o *operation) []any {
			return append(args, &o.id, &o.move.when, o.move.known.Nonce, o.move.known.Expires(), &o.known)
		},
	}
	reviveKind = &kind{
		name: "revive", script: script.Revive, read: readStates,
		words: func(g *commit) []any { return g.words },
		job:   func(args []any, o *operation) []any { return append(args, &o.id, cmp.Or(o.when, "+0"), &o.known) },
	}
	buryKind = &kind{
		name: "bury", script: script.BuryWaiting, read: readStates,
		words: func(*commit) []any { return nil },
		job:   func(args []any, o *operation) []any { return append(args, &o.id, &o.reason, &o.known) },
	}
	getKind = &kind{
		name: "get", script: script.Get, read: readRows, reads: true,
		words: func(*commit) []any { return []any{script.CallBytes, -1} },
	}
)

// place returns where an error of the operation occurred.
func (o *operation) place() script.Place {
	return script.Place{Call: o.kind.name, Topic: o.topic, Job: o.id}
}

// settle ends an operation with an error.
func (o *operation) settle(err error) { o.err, o.settled = o.place().At(err), true }

// answer ends an operation with what the script says of its job.
func (o *operation) answer(now int64, letter byte) {
	o.now, o.letter, o.settled = now, letter, true
}

// unsure returns the error of an operation that was sent and that Redis has not answered.
func (o *operation) unsure(cause error) error {
	if o.kind.reads {
		return cause
	}
	return fmt.Errorf("%w: %w", script.ErrUnknown, cause)
}

// size returns how many bytes count towards those of a call.
func (o *operation) size() int {
	if o.fresh == nil {
		return len(o.reason)
	}
	return len(o.fresh.tail)
}

// settleRows settles operations by the letters of a reply, those that it has room for.
func settleRows(list []*operation, r script.Reply) {
	letters := r.Text(2)
	for i, o := range list[:min(len(list), len(letters))] {
		o.answer(r.Now(), letters[i])
	}
}

// readStates settles operations that the script answers with a letter.
func readStates(_ *commit, list []*operation, r script.Reply) { settleRows(list, r) }

// readEnqueued settles the operations of an enqueue.
func readEnqueued(_ *commit, list []*operation, r script.Reply) {
	letters, since := r.Text(2), strings.Fields(r.Text(3))
	for i, o := range list {
		letter := byte(script.LetterStored)
		if i < len(letters) {
			letter = letters[i]
		}
		if letter == script.LetterDead && len(since) > 0 {
			o.since, _ = strconv.ParseInt(since[0], 10, 64) // the script has written it
			since = since[1:]
		}
		o.answer(r.Now(), letter)
	}
}

// mostAsked is how often a reschedule asks for the expiry of a job, which may be replaced in
// between.
const mostAsked = 10

// readRescheduled settles the operations of a reschedule. If a job can expire, the operation is
// left for another call that has its expiry.
func readRescheduled(_ *commit, list []*operation, r script.Reply) {
	letters, heads := r.Text(2), r.List(3).Texts()
	for i, o := range list[:min(len(list), len(letters))] {
		if letters[i] != script.LetterExpires {
			o.answer(r.Now(), letters[i])
			continue
		}
		head := ""
		if len(heads) > 0 {
			head, heads = heads[0], heads[1:]
		}
		o.learn(head)
	}
}

// learn reads the expiry of a job that is to be rescheduled. An empty head is that of a job that is
// gone or of one that the reply had no room for.
func (o *operation) learn(head string) {
	if o.move.asked++; o.move.asked == mostAsked {
		o.settle(script.ErrReply)
		return
	}
	o.move.known = record.Job{}
	if head == "" {
		return
	}
	known, err := record.DecodeMeta(head)
	if err != nil {
		o.settle(err)
		return
	}
	o.move.known = known
}

// readRows settles the operations of a get.
func readRows(g *commit, list []*operation, r script.Reply) {
	covered := min(len(r.List(2)), len(list))
	g.covered(covered, len(list))
	for i, o := range list[:covered] {
		o.row = make([]string, len(r)-2)
		for column := range o.row {
			o.row[column] = r.List(2 + column).Text(i)
		}
		o.answer(r.Now(), 0)
	}
}

// A sending is the operations of one kind that are sent in one call.
type sending struct {
	*script.Call
	kind   *kind
	list   []*operation
	series *script.Series // nil: the script writes nothing
}

// sendings divides operations by kind. Each call has a series of its own, because it has a receipt
// of its own.
func (g *commit) sendings(pool *script.SeriesPool, list []*operation) []*sending {
	var all []*sending
	for _, kind := range kinds {
		some := list
		if other := func(o *operation) bool { return o.kind != kind }; slices.ContainsFunc(list, other) {
			if !slices.ContainsFunc(list, func(o *operation) bool { return o.kind == kind }) {
				continue
			}
			some = slices.DeleteFunc(slices.Clone(list), other)
		}
		s := &sending{kind: kind, list: some}
		args, receipt := make([]any, 0, 6+4*len(some)), ""
		if !kind.reads {
			s.series = pool.Get()
			args = append(args, s.series.Next())
			receipt = s.series.Receipt(g.keys)
		}
		args = append(args, kind.words(g)...)
		for _, o := range some {
			if kind.job == nil {
				args = append(args, &o.id)
			} else {
				args = kind.job(args, o)
			}
		}
		which := kind.script
		if kind.which != nil {
			which = kind.which(some)
		}
		s.Call = script.NewCall(which, g.keys.Topic, len(some), g.keys.Of(which, receipt), args)
		all = append(all, s)
		if len(some) == len(list) {
			break
		}
	}
	return all
}

// send carries out operations, each about another job: one call for each kind, all of them at the
// same time. It settles them, except those that the scripts have left for another call. failed is
// the first error of a call, and unconfirmed says that its writes may be lost in a failover.
func (g *commit) send(ctx context.Context, pool *script.SeriesPool, list []*operation) (failed, unconfirmed error) {
	all := g.sendings(pool, list)
	answered := false
	defer func() {
		for _, s := range all {
			if s.series == nil {
				continue
			}
			err := script.ErrCutOff // a hook of the caller's go-redis client has ended the goroutine
			if answered {
				err = cmp.Or(s.Err, unconfirmed)
			}
			pool.Put(s.series, err)
		}
	}()
	calls := make([]*script.Call, len(all))
	for i, s := range all {
		calls[i] = s.Call
	}
	if all[0].kind == enqueueKind && g.all.replicas > 0 {
		unconfirmed = g.all.store(ctx, calls[0]) // these calls have the commit to themselves
	} else {
		g.all.scripts.Do(ctx, calls...)
	}
	answered = true
	for _, s := range all {
		failed = cmp.Or(failed, s.Err)
		g.read(ctx, s, unconfirmed)
	}
	return failed, unconfirmed
}

// read settles the operations of one call.
func (g *commit) read(ctx context.Context, s *sending, unconfirmed error) {
	if err := s.Err; err != nil {
		if !s.kind.reads {
			err = g.all.unsure(err)
		}
		for _, o := range s.list {
			o.settle(err)
		}
		return
	}
	s.kind.read(g, s.list, s.Reply)
	if s.kind == enqueueKind {
		g.record(ctx, s.Reply.Text(4) == "+")
	}
	left := 0
	for _, o := range s.list {
		if o.unconfirmed = unconfirmed; !o.settled && (o.move == nil || o.move.asked == 0) {
			left++
		}
	}
	if left == len(s.list) { // or it would go on for ever
		for _, o := range s.list {
			o.settle(script.ErrReply)
		}
	}
}
