package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

const (
	// noteEvery is the time between two calls that say how far the jobs of a topic have come.
	noteEvery = time.Second

	// saveGrace is how long a step that is over goes on being saved after the end of its context.
	// Handlers have twice that to return at a shutdown.
	saveGrace = shutdownGrace / 2

	// mostRecalls is the most calls of a server that read what earlier runs have noted.
	mostRecalls = 8
)

// noting is what runs of a topic have noted and Redis does not know yet. Topic.Mu guards it.
type noting struct {
	reports []*run.Run // with a report
	saves   []*saving
	over    bool      // the loop has ended
	at      time.Time // of the next call with reports

	// Only the loop uses the following fields.

	flying []noteRow // of a call whose results are not known
	failed bool      // the last call was not answered, or refused
	slow   loop.Pace
}

// A saving is a step whose result is on its way to Redis.
type saving struct {
	run          *run.Run
	step, result string
	ended        chan error // receives one value
	left         bool       // nobody waits for it; guarded by Topic.Mu
}

// A noteRow is what a call says of one run: its report, or a step.
type noteRow struct {
	run    *run.Run
	fence  string
	report string
	save   *saving // nil: none
}

// Report implements run.Noter.
func (t *Topic) Report(r *run.Run) {
	t.Mu.Lock()
	if !t.noting.over {
		t.noting.reports = append(t.noting.reports, r)
	}
	t.Mu.Unlock()
	t.Loops.note.Wake()
}

// Save implements run.Noter. The loop of the topic sends the steps of all its runs together.
func (t *Topic) Save(ctx context.Context, r *run.Run, step, result string) error {
	s := &saving{run: r, step: step, result: result, ended: make(chan error, 1)}
	t.Mu.Lock()
	if t.noting.over {
		t.Mu.Unlock()
		return unsaved(run.ErrShutdown)
	}
	t.noting.saves = append(t.noting.saves, s)
	t.Mu.Unlock()
	t.Loops.note.Wake()
	select {
	case err := <-s.ended:
		return err
	case <-ctx.Done():
	case <-r.Ctx.Done():
	}
	grace := time.NewTimer(saveGrace)
	defer grace.Stop()
	select {
	case err := <-s.ended:
		return err
	case <-grace.C:
	}
	t.Mu.Lock()
	defer t.Mu.Unlock()
	s.left = true
	return unsaved(cmp.Or(r.Lost, context.Cause(&r.Ctx), context.Cause(ctx)))
}

// unsaved returns the error of a step that is over and may not be saved.
func unsaved(why error) error { return fmt.Errorf("its result may not be saved: %w", why) }

// Recall implements run.Noter. It waits for a Redis that is away as long as the run may.
func (t *Topic) Recall(ctx context.Context, r *run.Run, some ...string) ([]string, map[string]string, error) {
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(&r.Ctx, cancel)()
	reply, err := t.recall(call, r, some)
	for slow := new(loop.Pace); ; reply, err = t.recall(call, r, some) {
		if err != nil && !script.Away(err) || err == nil && reply.Text(4) != string(script.LetterLost) {
			break
		}
		// A run whose job is gone must not take its steps for new ones. It is told soon. Or an
		// extension of its lease has overtaken the call.
		if !loop.Sleep(call, slow.Next()) {
			err = cmp.Or(err, error(run.ErrLeaseLost))
			break
		}
	}
	if err != nil {
		return nil, nil, cmp.Or(context.Cause(&r.Ctx), context.Cause(ctx), err)
	}
	note, damage, _ := record.DecodeNote(reply.Text(2), r.Nonce)
	if damage.Steps { // to take a step for a new one would repeat it
		return nil, nil, run.ErrDamaged
	}
	names := some
	if len(some) == 0 {
		names = note.Steps
	}
	results := make(map[string]string)
	for i, value := range reply.List(3) {
		if result, known := value.(string); known && i < len(names) {
			results[names[i]] = result
		}
	}
	return note.Steps, results, nil
}

// recall is one call of Recall. Few are in flight at a time.
func (t *Topic) recall(ctx context.Context, r *run.Run, some []string) (script.Reply, error) {
	select {
	case t.Server.recalls <- struct{}{}:
		defer func() { <-t.Server.recalls }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	t.Mu.Lock()
	args := []any{r.ID, r.Nonce, script.CallBytes, r.Fence.String()}
	t.Mu.Unlock()
	for _, step := range some {
		args = append(args, step)
	}
	return t.Server.Scripts.Exec(ctx, script.Recall, t.Keys, "", 1, args...)
}

// noteStep is a step of the loop that tells Redis what runs note. Steps are sent at once, all that
// wait together. Reports of all runs go with one call a second.
func (t *Topic) noteStep(ctx context.Context) loop.Next {
	k := &t.noting
	t.unfly()
	if ctx.Err() != nil {
		t.endNotes()
		return loop.Over
	}
	rows, wait := t.gatherNotes(time.Now())
	if len(rows) == 0 {
		if k.failed && wait == loop.Woken { // nobody is left whom it could fail
			k.failed = false
			t.trouble.note("note", nil)
		}
		return wait
	}
	err := t.sendNotes(ctx, rows)
	if k.failed = err != nil; k.failed {
		return loop.PauseFor(k.slow.Next())
	}
	k.slow.Reset()
	return loop.Again
}

// unfly queues the rows of a call again that code of the user has ended together with its step.
func (t *Topic) unfly() {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	for _, row := range t.noting.flying {
		t.requeueLocked(row)
	}
	t.noting.flying = nil
}

// endNotes ends the wait of those whose steps will not be saved.
func (t *Topic) endNotes() {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.noting.over = true
	for _, s := range t.noting.saves {
		s.ended <- unsaved(run.ErrShutdown)
	}
	t.noting.saves, t.noting.reports = nil, nil
}

// gatherNotes returns the rows of the next call, and without any how long to wait for them. Steps
// have at most about script.CallBytes beyond the first.
func (t *Topic) gatherNotes(now time.Time) (rows []noteRow, wait loop.Next) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	k := &t.noting
	if len(k.reports) > 0 && !now.Before(k.at) {
		rows = t.gatherReportsLocked(extendLimit - min(len(k.saves), extendLimit/2))
		if len(rows) > 0 && !t.Server.Config.Stepped {
			k.at = now.Add(noteEvery)
		}
	}
	n, bytes, steps := 0, 0, 0
	for ; n < len(k.saves) && len(rows) < extendLimit; n++ {
		s := k.saves[n]
		if s.left {
			continue
		}
		if why := t.goneLocked(s.run); why != nil {
			s.ended <- why
			continue
		}
		if bytes += len(s.result); steps > 0 && bytes > script.CallBytes {
			break
		}
		steps++
		rows = append(rows, noteRow{run: s.run, fence: s.run.Fence.String(), save: s})
	}
	clear(k.saves[:n])
	if k.saves = k.saves[n:]; len(k.saves) == 0 {
		k.saves = nil
	}
	if len(rows) == 0 && len(k.reports) > 0 {
		return nil, loop.RestFor(k.at.Sub(now))
	}
	return rows, loop.Woken
}

// gatherReportsLocked returns rows with the reports of at most that many runs. Those of runs that
// are over go with their ends: see noteLast.
func (t *Topic) gatherReportsLocked(most int) (rows []noteRow) {
	k := &t.noting
	n := 0
	for ; n < len(k.reports) && len(rows) < most; n++ {
		r := k.reports[n]
		report := r.Noted.Take()
		if report != "" && !r.Returned && t.goneLocked(r) == nil {
			rows = append(rows, noteRow{run: r, fence: r.Fence.String(), report: report})
		}
	}
	clear(k.reports[:n])
	if k.reports = k.reports[n:]; len(k.reports) == 0 {
		k.reports = nil
	}
	return rows
}

// goneLocked returns why a run cannot note anything any more, or nil if it can.
func (t *Topic) goneLocked(r *run.Run) error {
	switch {
	case r.Lost != nil:
		return r.Lost
	case t.owned.Runs[r.ID] != r: // given back, although its handler still runs
		return run.ErrLeaseLost
	}
	return nil
}

// callNotes calls the note script until it has answered all rows. After an error, it has answered
// those that there are letters for.
func (t *Topic) callNotes(ctx context.Context, rows []noteRow) (letters string, err error) {
	for err == nil && len(letters) < len(rows) {
		var more string
		more, err = t.callNotesOnce(ctx, rows[len(letters):])
		letters += more
	}
	return letters, err
}

func (t *Topic) callNotesOnce(ctx context.Context, rows []noteRow) (letters string, err error) {
	args := make([]any, 0, 6*len(rows))
	for _, row := range rows {
		step, result := "", ""
		if row.save != nil {
			step, result = row.save.step, row.save.result
		}
		args = append(args, row.run.ID, row.fence, row.run.Nonce, row.report, step, result)
	}
	reply, err := t.exec(ctx, topicCall{script: script.Note, jobs: len(rows)}, args...)
	if err != nil {
		return "", err
	}
	if letters = reply.Text(2); letters == "" || len(letters) > len(rows) {
		return "", script.ErrReply
	}
	return letters, nil
}

// sendNotes makes the call of the loop. What Redis may not have is queued again. A step that Redis
// has certainly refused is not.
func (t *Topic) sendNotes(ctx context.Context, rows []noteRow) error {
	t.noting.flying = rows
	letters, err := t.callNotes(ctx, rows)
	var doubted []noteRow
	t.Mu.Lock()
	for i, row := range rows {
		switch {
		case i >= len(letters) && row.save != nil && script.Certain(err) && !script.Away(err):
			row.save.ended <- err
		case i >= len(letters):
			t.requeueLocked(row)
		case letters[i] == script.LetterLost:
			doubted = append(doubted, row)
		case row.save == nil:
			row.run.Noted.Arrived(row.report)
			t.requeueLocked(row) // unless there is no newer one
		case letters[i] == script.LetterFull:
			row.save.ended <- run.ErrManySteps
		case letters[i] == script.LetterDamaged:
			row.save.ended <- run.ErrDamaged
		case letters[i] == script.LetterNoMemory:
			row.save.ended <- run.ErrNoMemory
		default:
			row.save.ended <- nil
		}
	}
	t.noting.flying = doubted
	t.Mu.Unlock()
	if len(doubted) == 0 {
		return err
	}
	return t.resolveNotes(ctx, doubted)
}

// requeueLocked makes a later call tell what a call has not, or what is newer.
func (t *Topic) requeueLocked(row noteRow) {
	switch {
	case row.save != nil:
		t.noting.saves = append(t.noting.saves, row.save)
	case row.run.Noted.Again():
		t.noting.reports = append(t.noting.reports, row.run)
	}
}

// resolveNotes finds out about leases that the script has not found. It may have been overtaken by
// an extension. Otherwise the extend script knows whether the job is lost or gone.
func (t *Topic) resolveNotes(ctx context.Context, doubted []noteRow) (err error) {
	var asked []*run.Run
	t.Mu.Lock()
	for _, row := range doubted {
		if t.goneLocked(row.run) == nil && row.run.Fence.String() == row.fence {
			asked = append(asked, row.run)
		}
	}
	t.Mu.Unlock()
	if len(asked) > 0 {
		err = t.checkLeases(ctx, asked)
	}
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.noting.flying = nil
	for _, row := range doubted {
		switch why := t.goneLocked(row.run); {
		case why == nil:
			if t.requeueLocked(row); err == nil && row.run.Fence.String() == row.fence {
				err = errUnnoted
			}
		case row.save != nil:
			row.save.ended <- why
		}
	}
	return err
}

// errUnnoted means that scripts differ about a lease, because its run is being settled.
var errUnnoted = errors.New("a lease is in doubt")

// noteLast tells Redis the last reports of runs that are over, before the call that releases their
// leases. Jobs that end keep no notes. An older report that is still on its way does no harm,
// because it has a smaller number. A call that fails is made again if that of the outcomes fails
// too: these do not wait for it.
func (t *Topic) noteLast(ctx context.Context, list []settle.Row) {
	if len(list) == 0 || !list[0].Verb.Stays() {
		return
	}
	rows := t.lastReports(list)
	for range 3 { // an extension can come first, and then the lease has another end
		if len(rows) == 0 {
			return
		}
		letters, err := t.callNotes(ctx, rows)
		if err != nil {
			return
		}
		var late []settle.Row
		t.Mu.Lock()
		for i, row := range rows {
			switch {
			case letters[i] != script.LetterLost:
				row.run.Noted.Arrived(row.report)
			case row.run.Lost == nil && row.run.Fence.String() != row.fence:
				late = append(late, settle.Row{Run: row.run})
			}
		}
		t.Mu.Unlock()
		rows = t.lastReports(late)
	}
}

// lastReports returns rows with the reports of runs that Redis is not known to have.
func (t *Topic) lastReports(list []settle.Row) (rows []noteRow) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	for i := range list {
		r := list[i].Run
		if report := r.Noted.Last(); report != "" {
			rows = append(rows, noteRow{run: r, fence: r.Fence.String(), report: report})
		}
	}
	return rows
}
