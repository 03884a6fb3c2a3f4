package serve

import (
	"context"
	"errors"
	"time"

	"github.com/delayq/delayq/internal/flow"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// admitAll admits the jobs in the reply to a take, with the times when it was sent and answered,
// and by which they must have started.
func (t *Topic) admitAll(work context.Context, r script.Reply, sent, replied, by time.Time) {
	starts := r.List(12)
	end, ids, records, tried, moved := record.ParseLeaseEnd(r.Text(2)), r.List(3), r.List(4), r.List(5), r.List(6)
	// Not the length of the lease: the reply may be one to an earlier copy of the request.
	until := sent.Add(time.Duration(end.Micros()-r.Now()*1000) * time.Microsecond)
	taken, last := make([]admission, len(ids)), []int(nil)
	for i := range ids {
		one, err := run.New(run.Taken{
			Topic: t.called(), ID: ids.Text(i), Record: records.Text(i), Attempts: tried.Text(i), Moved: moved.Text(i),
			End: end, Until: until, SetBacks: t.clock.SetsBack(), At: r.Now(), Defaults: &t.config.Defaults, Noter: t,
		})
		one.By = by
		if len(starts) > 0 { // not earlier than that by Redis's clock, which was read before the reply
			one.From = replied.Add(time.Duration(starts.Number(i)) * time.Microsecond)
		}
		taken[i] = admission{one, t.refusal(one, err, r.Now())}
		if taken[i].refused == nil && waitsForFlow(one) {
			last = append(last, i)
		}
	}
	if len(last) > 0 {
		t.beginFlows(work, taken, last, r.Now())
	}
	for _, a := range taken {
		t.admit(a.run, a.refused)
	}
}

// An admission is a taken job, and the row to send if it must not run.
type admission struct {
	run     *run.Run
	refused *settle.Row
}

// waitsForFlow reports whether a job is the last step of a flow, and runs only if that is complete.
// One that somebody has revived runs in any case. An attempt says nothing: its server can have died
// before it has asked.
func waitsForFlow(r *run.Run) bool {
	f := r.Options.Flow
	return f != nil && f.Last() && !r.Past.Revived
}

// beginFlows asks how the flows have come whose last steps were taken: the jobs with these indexes.
// now is Redis's clock, in ms. If that cannot be found out, the jobs are put off.
func (t *Topic) beginFlows(ctx context.Context, taken []admission, last []int, now int64) {
	args := make([]any, 0, 2*len(last))
	for _, i := range last {
		args = append(args, taken[i].run.ID, taken[i].run.Options.Flow.Name)
	}
	r, err := t.exec(ctx, topicCall{script: script.FlowBegin, jobs: len(last)}, args...)
	states, texts := r.List(2), r.List(3)
	if err == nil && (len(states) != len(last) || len(texts) != len(last)) {
		err = script.ErrReply
	}
	for n, i := range last {
		one := taken[i].run
		if err != nil {
			taken[i].refused = t.unbegun(one, err, now)
			continue
		}
		// Without what is said of the steps, the state decides.
		progress, _ := flow.ReadProgress(states.Text(n), texts.Text(n))
		taken[i].refused = t.Server.Config.Judge.Joined(one, &progress, now)
	}
}

// flowPause is how long a last step is put off if Redis refuses to say how its flow has come. It
// must not be at the head of ready meanwhile.
const flowPause = 10 * time.Second

// unbegun returns the row for the last step of a flow of which nothing is known. If Redis is away,
// the job goes back: the next take waits for Redis, too.
func (t *Topic) unbegun(r *run.Run, why error, now int64) *settle.Row {
	if script.Away(why) || errors.Is(why, context.Canceled) {
		return &settle.Row{Run: r, Verb: settle.Return, Err: why}
	}
	return &settle.Row{Run: r, Verb: settle.Snooze, End: time.UnixMilli(now), Delay: flowPause, Tally: r.Past, Later: true, Err: why}
}
