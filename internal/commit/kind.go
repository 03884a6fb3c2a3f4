package commit

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A Kind is one of the calls that share flights. One call of its script carries many operations.
type Kind struct {
	Name   string // in errors
	Script *script.Script
	which  func(list []*Op) *script.Script // if not always script
	lone   bool                            // an operation that is sent alone can have another script
	stores bool                            // it stores new jobs
	alone  bool                            // each operation has a call of its own
	bare   bool                            // calls have no receipt, because they can be repeated
	reads  bool                            // it writes nothing, so that its outcome is never unknown

	// words returns the arguments before those of the jobs, without the number of the call.
	words func(g *Group) []any
	// job adds the arguments about one job. width is their number.
	job   func(c *script.Call, o *Op)
	width int
	last  func(c *script.Call, list []*Op) // adds arguments behind those of all jobs; nil: none
	// read settles operations by the reply of the script. It leaves out those that the script has
	// left for another call.
	read func(g *Group, list []*Op, r script.Reply)
}

// kinds lists all, those with large replies last.
var kinds = []*Kind{
	Enqueue, EnqueueLinked, FlowStart, Cancel, FlowCancel, Delete, Reschedule, FlowRelease, Revive, Bury, Arrive, FlowSweep, Get,
}

// The kinds of calls.
var (
	Enqueue = &Kind{
		Name: "enqueue", Script: script.Enqueue, read: readEnqueued,
		which: func(list []*Op) *script.Script {
			which := script.Enqueue
			for _, o := range list {
				switch {
				case o.Fresh.Replace != ReplaceNone:
					return script.Replace
				case o.Fresh.Opts.Key != "":
					which = script.EnqueueKeyed
				}
			}
			return which
		},
		words: func(g *Group) []any { return g.words }, lone: true,
		width: 4, job: addFresh, stores: true,
	}
	Cancel = &Kind{
		Name: "cancel", Script: script.Cancel, read: readCancelled,
		words: func(g *Group) []any { return g.words[1:] },
		width: 2, job: func(c *script.Call, o *Op) { c.Add(&o.ID, o.known()) },
	}
	Delete = &Kind{
		Name: "delete", Script: script.Delete, read: readStates,
		words: func(*Group) []any { return nil },
		width: 2, job: func(c *script.Call, o *Op) { c.Add(&o.ID, &o.Known) },
	}
	Reschedule = &Kind{
		Name: "reschedule", Script: script.Reschedule, read: readRescheduled,
		words: func(g *Group) []any { return g.words },
		width: 5, job: addMove,
	}
	Revive = &Kind{
		Name: "revive", Script: script.Revive, read: readStates,
		words: func(g *Group) []any { return g.words },
		width: 3, job: func(c *script.Call, o *Op) { c.Add(&o.ID, cmp.Or(o.When, "+0"), &o.Known) },
	}
	Bury = &Kind{
		Name: "bury", Script: script.BuryWaiting, read: readStates,
		words: func(g *Group) []any { return g.words[1:] },
		width: 3, job: func(c *script.Call, o *Op) { c.Add(&o.ID, &o.Reason, &o.Known) },
	}
	Get = &Kind{
		Name: "get", Script: script.Get, read: readRows, reads: true,
		words: func(*Group) []any { return []any{script.CallBytes, -1} },
		width: 1, job: func(c *script.Call, o *Op) { c.Add(&o.ID) },
	}
)

// addFresh adds the arguments about a new job.
func addFresh(c *script.Call, o *Op) {
	c.Add(&o.ID)
	o.Fresh.addRecord(c)
	c.Add(&o.Fresh.When)
}

// addMove adds those about a job that gets another due time.
func addMove(c *script.Call, o *Op) {
	c.Add(&o.ID, &o.Move.When, o.Move.Known.Nonce, o.Move.Known.Expires(), &o.Known)
}

// settleRows settles operations by the letters of a reply, those that it has room for.
func settleRows(list []*Op, r script.Reply) {
	letters := r.Text(2)
	for i, o := range list[:min(len(list), len(letters))] {
		o.answer(r.Now(), letters[i])
	}
}

// readStates settles operations that the script answers with a letter.
func readStates(_ *Group, list []*Op, r script.Reply) { settleRows(list, r) }

// readCancelled settles the operations of a cancel.
func readCancelled(_ *Group, list []*Op, r script.Reply) {
	full := r.Text(3)
	for i, o := range list[:min(len(list), len(full))] {
		o.Full = o.Full || full[i] == script.LetterFull
	}
	settleRows(list, r)
}

// readEnqueued settles the operations of an enqueue.
func readEnqueued(_ *Group, list []*Op, r script.Reply) {
	letters, since, dues := r.Text(2), strings.Fields(r.Text(3)), strings.Fields(r.Text(5))
	free := since[min(len(since), strings.Count(letters, string(script.LetterDead))):]
	for i, o := range list {
		letter := byte(script.LetterStored)
		if i < len(letters) {
			letter = letters[i]
		}
		if letter == script.LetterDead && len(since) > 0 {
			o.Since, _ = strconv.ParseInt(since[0], 10, 64) // the script has written it
			since = since[1:]
		}
		if letter == script.LetterTomb && len(free) > 0 {
			o.Since, _ = strconv.ParseInt(free[0], 10, 64)
			free = free[1:]
		}
		if o.Fresh.Replace.Merges() && script.Stored(letter) && len(dues) > 0 {
			o.Due, _ = strconv.ParseInt(dues[0], 10, 64)
			dues = dues[1:]
		}
		o.answer(r.Now(), letter)
		o.EnqueuedAt = o.Fresh.enqueuedAt(r.Now())
	}
}

// mostAsked is how often a reschedule asks for the expiry of a job, which may be replaced in
// between.
const mostAsked = 10

// readRescheduled settles the operations of a reschedule. If a job can expire, the operation is
// left for another call that has its expiry.
func readRescheduled(_ *Group, list []*Op, r script.Reply) {
	letters, heads, dues := r.Text(2), r.List(3).Texts(), strings.Fields(r.Text(4))
	for i, o := range list[:min(len(list), len(letters))] {
		if letters[i] == script.LetterScheduled && len(dues) > 0 {
			o.Was, _ = strconv.ParseInt(dues[0], 10, 64) // the script has written it
			dues = dues[1:]
		}
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
func (o *Op) learn(head string) {
	if o.Move.asked++; o.Move.asked == mostAsked {
		o.Settle(script.ErrReply)
		return
	}
	o.Move.Known = record.Job{}
	if head == "" {
		return
	}
	known, err := record.DecodeMeta(head)
	if err != nil {
		o.Settle(err)
		return
	}
	o.Move.Known = known
}

// readRows settles the operations of a get.
func readRows(g *Group, list []*Op, r script.Reply) {
	covered := min(len(r.List(2)), len(list))
	g.covered(covered, len(list))
	for i, o := range list[:covered] {
		o.Row = make([]string, rowColumns)
		for column := range o.Row {
			o.Row[column] = r.List(2 + column).Text(i)
		}
		letter := byte(0)
		if r.Number(2+rowColumns) == 1 && o.Row[rowRecord] == "" {
			letter = script.LetterElsewhere
		}
		o.answer(r.Now(), letter)
	}
}

// The columns of a get that have the record of an unfinished job, and what is kept of a done one.
const (
	rowRecord  = 0
	rowResult  = 8
	rowColumns = 11
)

// noJob reports whether the columns of a job say that there is none.
func noJob(row []string) bool { return row[rowRecord] == "" && row[rowResult] == "" }

// over reports whether a get has found a job that is done and kept.
func (o *Op) over() bool {
	return o.Kind == Get && o.settled && o.Err == nil && o.Row[rowRecord] == "" && o.Row[rowResult] != ""
}
