package serve

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/flow"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A failover can lose what Redis has said that it has. Then a flow can wait for a step whose job is
// not there, or have no last step any more. Servers look for both: one of them reads a page of the
// flows of each topic a minute. A step counts as lost if it has started GuardAge ago, nothing is on
// its way to its topic, and the topic does not know its job, in two looks a round apart.
const (
	GuardEvery = time.Minute
	GuardAge   = 10 * time.Minute

	guardGap   = 100 * time.Millisecond // from topic to topic
	guardSteps = 500                    // of a topic that are asked for in a round
	guardTries = 3                      // of the call that ends lost steps
)

// A guarding is how far the guard loop has come in a topic.
type guarding struct {
	cursor string    // of the next page
	flows  []flowRef // of the last page that are left
}

// A flowRef is a flow, and the number of the step at which its look goes on.
type flowRef struct {
	id, name string
	from     int64
}

// A doubt is a step whose topic does not know its job.
type doubt struct {
	flow   flowRef
	number int
	target string
	job    string
}

// guardLoop looks for flows that have lost something.
func (s *Server) guardLoop(ctx context.Context) {
	doubts := make(map[string][]doubt) // by home, of the last round
	for wait := GuardEvery; loop.Sleep(ctx, wait); {
		began := time.Now()
		before := doubts
		doubts = make(map[string][]doubt)
		for i, t := range s.Topics.all() {
			if i > 0 && !loop.Sleep(ctx, guardGap) {
				return
			}
			t.endLost(ctx, before[t.Keys.Topic])
			if found := t.guard(ctx); len(found) > 0 {
				doubts[t.Keys.Topic] = found
			}
		}
		wait = max(GuardEvery-time.Since(began), guardGap)
	}
}

// guard looks at some flows of the topic, unless another server does. It returns the steps that are
// in doubt.
func (t *Topic) guard(ctx context.Context) (doubts []doubt) {
	g := &t.Loops.guarding
	if len(g.flows) == 0 {
		r, err := t.exec(ctx, topicCall{script: script.FlowLook}, orZero(g.cursor))
		if err != nil || len(r.List(3)) == 0 {
			g.cursor = ""
			return nil
		}
		if !t.claimGuard(ctx) {
			return nil
		}
		g.cursor = r.Text(2)
		t.readFlows(ctx, r)
	}
	for budget := guardSteps; budget > 0 && len(g.flows) > 0 && ctx.Err() == nil; {
		found, asked, err := t.lookAtSteps(ctx, &g.flows[0])
		if err != nil || g.flows[0].from == 0 {
			g.flows = g.flows[1:]
		}
		doubts, budget = append(doubts, found...), budget-max(asked, 1)
	}
	return doubts
}

// orZero is a cursor from which SCAN can go on.
func orZero(cursor string) string {
	if cursor == "" {
		return "0"
	}
	return cursor
}

// claimGuard makes the other servers leave the flows of the topic to this one for a round. It
// reports whether one of them was faster.
func (t *Topic) claimGuard(ctx context.Context) bool {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	s := t.Server
	mine, err := s.Calls.SetNX(call, t.Keys.Shift("guard"), s.Config.ID, GuardEvery-GuardEvery/10).Result()
	if ctx.Err() == nil {
		t.trouble.note("guard", err)
	}
	return mine && err == nil
}

// readFlows reads a page of flows. Those without their last steps are deleted. Those that are
// complete or have failed are released again: whoever was to do that can have died. That leaves a
// last step alone that was released before or has begun.
func (t *Topic) readFlows(ctx context.Context, r script.Reply) {
	letters := r.Text(5)
	var orphans, over []commit.Row
	for i, id := range r.List(3).Texts() {
		one := flowRef{id: id, name: r.List(4).Text(i)}
		switch {
		case i >= len(letters):
		case letters[i] == script.LetterGone:
			end := commit.End{ID: one.id, Name: one.name, Step: record.LastStep, Outcome: commit.SweepAll}
			orphans = append(orphans, commit.Row{Kind: commit.RowSweep, Topic: t.Keys.Topic, ID: one.id, End: end, Told: true})
		case letters[i] == flow.Released, letters[i] == flow.Failed:
			over = append(over, commit.Row{Kind: commit.RowRelease, Topic: t.Keys.Topic, ID: one.id, End: commit.End{ID: one.id, Name: one.name}, Told: true})
		case letters[i] == flow.Open:
			t.Loops.guarding.flows = append(t.Loops.guarding.flows, one)
		}
	}
	if len(orphans) > 0 {
		t.trouble.log.Warn("flows without their last steps", "count", len(orphans), "job", orphans[0].ID)
		t.tell(ctx, orphans)
	}
	if len(over) > 0 {
		t.tell(ctx, over)
	}
}

// lookAtSteps asks the topics of some steps of a flow whether they have their jobs. It returns
// those that have not, and for how many it has asked.
func (t *Topic) lookAtSteps(ctx context.Context, f *flowRef) (doubts []doubt, asked int, err error) {
	r, err := t.exec(ctx, topicCall{script: script.FlowStarted}, f.id, f.name, f.from, GuardAge.Milliseconds())
	if err != nil {
		return nil, 0, err
	}
	f.from = r.Number(4)
	by := make(map[string][]doubt)
	for i, text := range r.List(3).Texts() {
		step, err := flow.ReadDefinition(text)
		if err != nil {
			continue // the check reports it
		}
		by[step.Topic] = append(by[step.Topic], doubt{*f, int(r.List(2).Number(i)), step.Topic, step.ID})
		asked++
	}
	for target, list := range by {
		doubts = append(doubts, t.missing(ctx, target, list)...)
	}
	return doubts, asked, nil
}

// missing returns the steps of one topic that it does not know, although nothing is on its way from
// there. If it has partitions, any of them can have the job.
func (t *Topic) missing(ctx context.Context, target string, list []doubt) (doubts []doubt) {
	doubts, err := t.missingAt(ctx, target, list)
	if err == nil && len(doubts) > 0 {
		doubts, err = t.missingIn(ctx, target, doubts)
	}
	if ctx.Err() != nil {
		return nil
	}
	if t.trouble.note("guard of "+target, err); err != nil {
		return nil
	}
	return doubts
}

// missingIn asks the partitions of a topic about steps that their home does not know.
func (t *Topic) missingIn(ctx context.Context, target string, list []doubt) ([]doubt, error) {
	texts, errs := t.Server.readMaps(ctx, []*script.Keys{script.NewKeys(t.Keys.Prefix(), target)})
	m, err := mapOf(texts[0], errs[0])
	if err != nil {
		return nil, err
	}
	for _, g := range m {
		if g.Number == part.Home {
			continue
		}
		for i, place := range g.Names(target) {
			rest, mine := []doubt(nil), []doubt(nil)
			for _, d := range list {
				if g.ByKey || g.Index(d.job, "") == i {
					mine = append(mine, d)
				} else {
					rest = append(rest, d)
				}
			}
			if len(mine) == 0 {
				continue
			}
			mine, err := t.missingAt(ctx, place, mine)
			if err != nil {
				return nil, err
			}
			list = append(rest, mine...)
		}
	}
	return list, nil
}

// missingAt is missing for one place.
func (t *Topic) missingAt(ctx context.Context, place string, list []doubt) (doubts []doubt, err error) {
	args := []any{t.Keys.Topic}
	for _, d := range list {
		args = append(args, d.job, d.flow.name+record.StepHex(d.number))
	}
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	r, err := t.Server.Scripts.Exec(call, script.FlowLost, script.NewKeys(t.Keys.Prefix(), place), "", len(list), args...)
	letters := r.Text(2)
	for i, d := range list {
		if err == nil && i < len(letters) && letters[i] == '-' {
			doubts = append(doubts, d)
		}
	}
	return doubts, err
}

// endLost ends the steps that a second look does not find either.
func (t *Topic) endLost(ctx context.Context, doubts []doubt) {
	by := make(map[string][]doubt)
	for _, d := range doubts {
		by[d.target] = append(by[d.target], d)
	}
	var rows []commit.Row
	for target, list := range by {
		for _, d := range t.missing(ctx, target, list) {
			row := commit.ArrivalRow(commit.End{ID: d.flow.id, Name: d.flow.name, Step: d.number, Outcome: flow.Lost, Rest: "the job is not there: Redis has lost data"})
			row.Topic, row.Told = t.Keys.Topic, true
			rows = append(rows, row)
		}
	}
	if len(rows) > 0 {
		t.trouble.log.Error("steps of flows lost", "count", len(rows), "job", rows[0].ID)
		t.tell(ctx, rows)
	}
}

// tell carries out rows of the topic itself. The last arrival of a flow releases its last step in a
// call of its own. If neither that nor its repetitions get through, the deadline of the flow does
// it.
func (t *Topic) tell(ctx context.Context, rows []commit.Row) {
	plan := commit.Plan{Series: "~#" + rand.Text()[:13], Number: uint64(time.Now().UnixMilli()), Tag: "guard", Probe: true}
	var err error
	for try := 0; try < guardTries && (try == 0 || loop.Sleep(ctx, time.Duration(try)*time.Second)); try++ {
		call, cancel := context.WithTimeout(ctx, deliverTimeout)
		var outcomes []error
		outcomes, err = t.Server.Config.Deliver(call, plan, rows)
		cancel()
		if err = errors.Join(append(outcomes, err)...); err == nil {
			break
		}
	}
	if ctx.Err() == nil {
		t.trouble.note("guard", err)
	}
}
