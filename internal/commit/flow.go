package commit

import (
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A FlowPart is what an operation says of a flow.
type FlowPart struct {
	// Word is what the script reads beside the job: the link of a step without its nonce; the name
	// of the flow and the number of the step that is to be cancelled; the name of a flow that is to
	// be released. Of an arrival it is the whole body.
	Word    string
	Words   []any // of a start: what the script reads behind the job
	End     End   // of an arrival or of a sweep
	From    int64 // of a sweep: the number of the step at which the next call goes on
	Release bool  // of an arrival, once it is settled: the flow is to be released

	walks bool // of a sweep: the last call has said where to go on
}

// The kinds of calls by which parcels of flows are carried out. They are sent by plans only.
var (
	EnqueueLinked = &Kind{
		Name: "enqueue", Script: script.EnqueueLinked, read: readEnqueued, stores: true,
		words: func(g *Group) []any { return g.words },
		width: 5, job: addFresh, last: func(c *script.Call, list []*Op) {
			addWords(c, list)
			c.Add(len(list))
		},
	}
	Arrive = &Kind{
		Name: "arrive", Script: script.Arrive, read: readArrived,
		words: func(g *Group) []any { return g.words[1:] },
		width: 1, job: func(c *script.Call, o *Op) { c.Add(&o.Flow.Word) },
	}
	FlowCancel = &Kind{
		Name: "cancel", Script: script.FlowCancel, read: readCancelled,
		words: func(g *Group) []any { return g.words[1:] },
		width: 3, job: func(c *script.Call, o *Op) { c.Add(&o.ID, &o.Known) }, last: addWords,
	}
	FlowRelease = &Kind{
		Name: "release", Script: script.FlowRelease, read: readRescheduled,
		words: func(g *Group) []any { return g.words },
		width: 6, job: addMove, last: addWords,
	}
	FlowSweep = &Kind{
		Name: "sweep", Script: script.FlowSweep, read: readSwept, alone: true, bare: true,
		words: func(g *Group) []any { return g.words[1:] },
		width: 4, job: func(c *script.Call, o *Op) {
			e := &o.Flow.End
			c.Add(&o.ID, &e.Name, string(e.Outcome), o.Flow.From)
		},
	}
)

// addWords adds what the script reads of flows beside the jobs, behind all of them.
func addWords(c *script.Call, list []*Op) {
	for _, o := range list {
		c.Add(&o.Flow.Word)
	}
}

// readArrived settles arrivals. The script has said which flows are to be released, and handles the
// first arrivals only if they have much to do.
func readArrived(_ *Group, list []*Op, r script.Reply) {
	released := make(map[[2]string]bool)
	for i, id := range r.List(2).Texts() {
		released[[2]string{id, r.List(4).Text(i)}] = true
	}
	for _, o := range list[:max(0, min(len(list), int(r.Number(3))))] {
		o.Flow.Release = released[[2]string{o.ID, o.Flow.End.Name}]
		o.answer(r.Now(), script.LetterOurs)
	}
}

// readSwept settles a sweep that is over. Otherwise it goes on in another call.
func readSwept(_ *Group, list []*Op, r script.Reply) {
	o := list[0]
	switch next := r.Number(2); {
	case next < 0:
		o.answer(r.Now(), script.LetterOurs)
	case next != o.Flow.From:
		o.Flow.From, o.Flow.walks = next, true
	}
}

// goesOn reports whether the reply has told an operation something for its next call.
func (o *Op) goesOn() bool {
	if o.Flow != nil && o.Flow.walks {
		o.Flow.walks = false
		return true
	}
	return o.Move != nil && o.Move.asked > 0
}

// about returns what must not be twice in a call.
func (o *Op) about() string {
	if o.Kind == Arrive {
		return o.ID + "\x00" + o.Flow.End.Name + record.StepHex(o.Flow.End.Step)
	}
	return o.ID
}

// releases returns the operations that release the flows of which these arrivals are the last ones.
func releases(arrived []*Op, seen map[[2]string]bool) (list []*Op) {
	for _, o := range arrived {
		if o.Kind != Arrive || !o.Flow.Release {
			continue
		}
		flow := [2]string{o.ID, o.Flow.End.Name}
		if seen[flow] {
			continue
		}
		seen[flow] = true
		list = append(list, ReleaseOp(o.Topic, o.ID, o.Flow.End.Name))
	}
	return list
}

// ReleaseOp returns the operation that makes the last step of a flow due now.
func ReleaseOp(topic, id, name string) *Op {
	return &Op{Kind: FlowRelease, Topic: topic, ID: id, Move: &Move{When: "+0"}, Flow: &FlowPart{Word: name}}
}

// FlowOp returns the operation of a row that is not an enqueue, nil if the row has another kind.
func FlowOp(r *Row) *Op {
	o := &Op{Topic: r.Topic, ID: r.ID, Flow: &FlowPart{Word: r.Link, End: r.End}}
	switch r.Kind {
	case RowArrival:
		o.Kind, o.Flow.Word = Arrive, r.Record
	case RowFlowCancel:
		o.Kind = FlowCancel
	case RowSweep:
		o.Kind = FlowSweep
	case RowRelease:
		return ReleaseOp(r.Topic, r.ID, r.End.Name)
	default:
		return nil
	}
	return o
}

// RowOf returns the row of what a parcel says, without the topic and the age.
func (p *Parcel) RowOf() Row {
	e := p.End
	switch p.Format {
	case FormatStep:
		row := p.Row
		row.Kind, row.Link = RowLinked, p.Link
		return row
	case FormatArrival:
		return ArrivalRow(e)
	case FormatCancel:
		return Row{Kind: RowFlowCancel, ID: e.ID, Link: e.Name + record.StepHex(e.Step), End: e}
	case FormatSweep:
		return Row{Kind: RowSweep, ID: e.ID, End: e}
	}
	return p.Row
}

// ArrivalRow returns the row that tells the home of a flow that a step has ended.
func ArrivalRow(e End) Row { return Row{Kind: RowArrival, ID: e.ID, Record: e.Body(), End: e} }
