package serve

import (
	"errors"
	"time"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/settle"
)

const (
	// LaterFirst and LaterMost bound how long a job of a later release is put off. It is a quarter
	// of the time since this server has met the first one.
	LaterFirst = time.Second
	LaterMost  = time.Minute

	// LaterMemory is how long ago the last one was when the next counts as the first one again.
	LaterMemory = 10 * time.Minute
)

// laterJobs are what a topic remembers of the jobs of later releases that it has taken. Servers of
// these releases run them. In an upgrade these servers come soon, so such a job is put off briefly
// at first. A server that is left behind for hours takes each of them once a minute.
type laterJobs struct {
	first, last time.Time // when this server has met them; zero: never
}

// putOff notes that the server has met a job of a later release. It returns how long to put it off,
// and whether it is the first one.
func (l *laterJobs) putOff(now time.Time) (delay time.Duration, first bool) {
	if first = l.last.IsZero() || now.Sub(l.last) >= LaterMemory; first {
		l.first = now
	}
	l.last = now
	return min(max(now.Sub(l.first)/4, LaterFirst), LaterMost).Truncate(time.Millisecond), first
}

// refusal returns the row to send for a taken job that must not run, or nil if it must run. now is
// Redis's clock, in ms.
func (t *Topic) refusal(r *run.Run, undecodable error, now int64) *settle.Row {
	if !errors.Is(undecodable, record.ErrNewer) {
		return t.Server.Config.Judge.Refusal(r, undecodable, now, t.trouble.log)
	}
	t.Mu.Lock()
	delay, first := t.taking.later.putOff(time.Now())
	t.Mu.Unlock()
	if first {
		t.trouble.log.Error("job of a later release", "job", r.ID, "err", undecodable, "delay", delay)
	}
	return &settle.Row{Run: r, Verb: settle.Snooze, End: time.UnixMilli(now), Delay: delay, Tally: r.Past, Later: true, Err: undecodable}
}
