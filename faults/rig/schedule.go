package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq"
)

// A Plan is what a schedule is to do, in terms that can be judged without the library: its slots
// are at all multiples of Every since 1970, or at these seconds of every minute.
type Plan struct {
	Every   int64  `json:"every,omitempty"` // ms
	Seconds []int  `json:"seconds,omitempty"`
	Overlap string `json:"overlap"`            // allow, skip, queue, cancel
	Missed  string `json:"missed"`             // once, skip, catch up
	CatchUp int    `json:"catch_up,omitempty"` // slots
}

// Slot gives the first slot after a time, both in Unix ms.
func (p *Plan) Slot(after int64) int64 {
	if p.Every > 0 {
		return (after/p.Every + 1) * p.Every
	}
	for s := after/1000 + 1; ; s++ {
		if slices.Contains(p.Seconds, int(s%60)) {
			return s * 1000
		}
	}
}

// Has tells whether a time is a slot.
func (p *Plan) Has(slot int64) bool { return p.Slot(slot-1) == slot }

// Count tells how many slots there are from one time to before another.
func (p *Plan) Count(from, to int64) (n int64) {
	if p.Every > 0 {
		return max(0, (to-1)/p.Every-(from-1)/p.Every)
	}
	for slot := p.Slot(from - 1); slot < to; slot = p.Slot(slot) {
		n++
	}
	return n
}

func (p *Plan) spec() delayq.Spec {
	if p.Every > 0 {
		return delayq.Every(time.Duration(p.Every) * time.Millisecond)
	}
	var list []string
	for _, s := range p.Seconds {
		list = append(list, strconv.Itoa(s))
	}
	return delayq.Cron(strings.Join(list, ",")+" * * * * *", "")
}

func (p *Plan) policies() []delayq.ScheduleOption {
	overlap := map[string]delayq.OverlapPolicy{
		"allow": delayq.OverlapAllow, "skip": delayq.OverlapSkip, "queue": delayq.OverlapQueueOne, "cancel": delayq.OverlapCancelPrevious,
	}[p.Overlap]
	missed := map[string]delayq.MissedPolicy{"once": delayq.MissedRunOnce, "skip": delayq.MissedSkip, "catch up": delayq.MissedCatchUp(p.CatchUp)}[p.Missed]
	return []delayq.ScheduleOption{overlap, missed}
}

// Books are what a schedule says of itself. Times are in Unix ms, 0 if there is none.
type Books struct {
	Next    int64 `json:"next,omitempty"`
	Waits   int64 `json:"waits,omitempty"` // a slot that waits for the end of the last run
	Fired   int64 `json:"fired,omitempty"`
	Skipped int64 `json:"skipped,omitempty"`
	Missed  int64 `json:"missed,omitempty"`
	Runs    int64 `json:"runs,omitempty"`
	Created int64 `json:"created,omitempty"`
	Changed int64 `json:"changed,omitempty"`
	Paused  int64 `json:"paused,omitempty"`
	Last    int64 `json:"last,omitempty"`
}

// Ran is an entry of a schedule's history.
type Ran struct {
	Job     string `json:"job"`
	Attempt int    `json:"attempt"`
	Outcome string `json:"outcome"`
}

// A Schedule is one whose jobs are tasks: of Task the topic, what an attempt does and what its jobs
// may.
type Schedule struct {
	Plan
	Task
	Name string
}

func unixMS(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// about is a call about a schedule.
func (c *Client) about(op, topic, name string, do func(e *Event) error) error {
	return c.ask(Event{Op: op, Topic: topic, ID: name}, do)
}

// PutSchedule makes a schedule or changes it.
func (c *Client) PutSchedule(ctx context.Context, s *Schedule) error {
	if s.Inc == 0 {
		s.Inc = calls.Add(1)
	}
	payload, err := json.Marshal(work{Inc: s.Inc, Steps: s.Steps})
	if err != nil {
		return err
	}
	opts := append(s.policies(), delayq.Header(incHeader, strconv.FormatInt(s.Inc, 10)), delayq.ProcessIn(s.Delay))
	e := Event{
		Op: OpSchedule, Topic: s.Topic, ID: s.Name, Inc: s.Inc, Delay: s.Delay.Milliseconds(), Retries: s.Retries, Expires: s.Expires > 0,
		Sum: sum(payload), Plan: &s.Plan,
	}
	if s.Retries >= 0 {
		opts = append(opts, delayq.Retry(s.Retries))
	}
	if s.Expires > 0 {
		opts = append(opts, delayq.ExpireIn(s.Expires))
	}
	for _, o := range s.Options {
		opts = append(opts, o)
	}
	return c.ask(e, func(*Event) error { return c.Client.Schedule(ctx, s.Topic, s.Name, s.spec(), payload, opts...) })
}

// RemoveSchedule removes a schedule.
func (c *Client) RemoveSchedule(ctx context.Context, topic, name string) error {
	return c.about(OpUnschedule, topic, name, func(*Event) error { return c.Unschedule(ctx, topic, name) })
}

// HoldSchedule pauses a schedule.
func (c *Client) HoldSchedule(ctx context.Context, topic, name string) error {
	return c.about(OpPause, topic, name, func(*Event) error { return c.PauseSchedule(ctx, topic, name) })
}

// LetSchedule resumes a schedule.
func (c *Client) LetSchedule(ctx context.Context, topic, name string) error {
	return c.about(OpResume, topic, name, func(*Event) error { return c.ResumeSchedule(ctx, topic, name) })
}

// TriggerSchedule makes a job of a schedule at once.
func (c *Client) TriggerSchedule(ctx context.Context, topic, name string) error {
	return c.about(OpTrigger, topic, name, func(e *Event) (err error) {
		e.Result, err = c.Trigger(ctx, topic, name)
		return err
	})
}

// ReadSchedule notes the books of a schedule.
func (c *Client) ReadSchedule(ctx context.Context, topic, name string) (books *Books, err error) {
	err = c.about(OpRead, topic, name, func(e *Event) error {
		info, err := c.Inspector.Schedule(ctx, topic, name)
		if err != nil {
			return err
		}
		e.Books = newBooks(info)
		books = e.Books
		return info.Undecodable
	})
	return books, err
}

func newBooks(info *delayq.ScheduleInfo) *Books {
	return &Books{
		Next: unixMS(info.NextSlot), Waits: unixMS(info.WaitingSlot), Fired: info.Fired, Skipped: info.Skipped, Missed: info.Missed, Runs: info.Attempts,
		Created: unixMS(info.CreatedAt), Changed: unixMS(info.ChangedAt), Paused: unixMS(info.PausedSince), Last: unixMS(info.LastSlot),
	}
}

// ListSchedules lists the schedules of a topic, notes the books of some, and gives the names of
// all.
func (c *Client) ListSchedules(ctx context.Context, topic string, some []string) (all []string, err error) {
	found := make(map[string]*Books)
	var ask func(left []string) error
	ask = func(left []string) error { // one call for all of them: each is noted around those behind it
		if len(left) == 0 {
			list, err := c.Inspector.Schedules(ctx, topic)
			for _, info := range list {
				all = append(all, info.Name)
				found[info.Name] = newBooks(info)
			}
			return err
		}
		return c.about(OpRead, topic, left[0], func(e *Event) error {
			err := ask(left[1:])
			if e.Books = found[left[0]]; err == nil && e.Books == nil {
				e.Err = "not listed"
			}
			return err
		})
	}
	err = ask(some)
	return all, err
}

// ReadRuns notes the history of a schedule.
func (c *Client) ReadRuns(ctx context.Context, topic, name string) error {
	return c.about(OpRuns, topic, name, func(e *Event) error {
		list, err := c.Inspector.Runs(ctx, topic, name, 20)
		for _, r := range list {
			e.Ran = append(e.Ran, Ran{r.JobID, r.Attempt, string(r.Outcome)})
		}
		return err
	})
}

// Look checks a topic without repair.
func (c *Client) Look(ctx context.Context, topic string) error {
	return c.about(OpCheck, topic, "", func(e *Event) error {
		report, err := c.Inspector.Check(ctx, topic)
		if report != nil && len(report.Findings) > 0 {
			e.Err = fmt.Sprint(report.Findings[:min(len(report.Findings), 10)])
		}
		return err
	})
}
