package delayq

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

// actorKey is the key of the actor in a context.
type actorKey struct{}

// WithActor returns a context for acts of a person or a program, such as an operator's. Every call
// of a [Client] with this context that changes existing jobs, topics or schedules is recorded in
// the audit of the prefix, under this name. Without an actor nothing is recorded, and nothing is
// sent to Redis for it. An empty name removes the actor of ctx.
//
// A name has at most 1 KiB. With a longer one, every call of a Client returns [ErrInvalid].
//
// These calls are recorded: [Client.Dequeue], [Client.CancelBatch], [Client.Reschedule],
// [Client.RescheduleBatch], [Client.Revive], [Client.Bury], [Client.Delete], [Client.Pause],
// [Client.Resume], [Client.ResumeAll], [Client.SetLimits], [Client.Hold], [Client.EndHold],
// [Client.SetKeyLimits], [Client.HoldKey], [Client.PauseKey], [Client.ResumeKey],
// [Client.SetPriority], [Client.RemoveTopic], [Client.Schedule],
// [Client.EditSchedule], [Client.Unschedule], [Client.PauseSchedule], [Client.ResumeSchedule],
// [Client.Trigger], [Client.Repair] and [Client.Apply]. A call that fails is not recorded, and
// neither is a Schedule, EditSchedule, Repair, batch or Apply that changes nothing. The others are
// recorded even if nothing was left to change, for example a Resume of a topic that is not paused.
// [Client.Enqueue] is not recorded, even if it replaces a job. The command line and the web page
// record the enqueues of their users themselves.
//
// The audit has the newest 1,000 acts of the prefix. An entry is written after its act, because the
// two can be in different slots of a Cluster. If that fails, the call returns [ErrNotAudited]. If
// the outcome of an act is unknown, an entry is written all the same, with a Count of 0. If the
// process dies between the act and the entry, the entry is missing. Cost: one call of O(1) for each
// act.
func WithActor(ctx context.Context, actor string) context.Context {
	if ctx == nil {
		return nil // the call refuses it
	}
	return context.WithValue(ctx, actorKey{}, actor)
}

// An AuditEntry is one act that was recorded because its context had an actor ([WithActor]).
type AuditEntry struct {
	At     time.Time // by Redis's clock
	Actor  string
	Action string // for example cancel, apply cancel, pause or edit schedule
	Topic  string // empty for a batch of jobs of several topics
	ID     string // of a job, or the name of a schedule; empty for other acts
	Filter string // the jobs of a batch, or the arguments of the call; at most 2 KiB
	Count  int64  // what was changed: jobs, a schedule, a topic or repairs; 0: the outcome is unknown
}

// actorOf returns the actor of a context, or "".
func actorOf(ctx context.Context) string {
	actor, _ := ctx.Value(actorKey{}).(string)
	return actor
}

// checkActor returns an error if the actor of a context is too long.
func checkActor(ctx context.Context) error {
	if n := len(actorOf(ctx)); n > script.MaxIDLen {
		return fmt.Errorf("%w: actor of %d bytes, at most %d are allowed", ErrInvalid, n, script.MaxIDLen)
	}
	return nil
}

// audited records an act that has ended with err, and returns the error of the call. place names
// the act, filter has its arguments, and count is what it has changed. An act that has changed
// nothing is not recorded, unless its outcome is unknown.
func (c *Client) audited(ctx context.Context, place script.Place, filter string, count int64, err error) error {
	return c.auditedIf(ctx, place, filter, count, errors.Is(err, ErrUnknownOutcome), err)
}

// auditedIf is audited for an act whose error does not say whether its outcome is unknown.
func (c *Client) auditedIf(ctx context.Context, place script.Place, filter string, count int64, unknown bool, err error) error {
	if c == nil || ctx == nil {
		return err
	}
	actor := actorOf(ctx)
	if actor == "" || count == 0 && !unknown {
		return err
	}
	act := record.AuditEntry{
		Actor: actor, Action: place.Call, Topic: place.Topic, ID: cmp.Or(place.Job, place.Schedule), Filter: filter, Count: count,
	}
	// The act is done, so the end of its context must not keep it from being recorded.
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), serve.CallTimeout)
	defer cancel()
	_, failed := c.scripts.Call(call, script.Audit, "", 0, []any{script.AuditKey(c.o.prefix)}, rand.Text()[:16], act.Encode(), record.MaxActs)
	if failed == nil || unknown { // if it is unknown, the caller must look anyway
		return err
	}
	return errors.Join(err, unaudited{place.At(fmt.Errorf("%w: %w", ErrNotAudited, failed))})
}

// unaudited is an ErrNotAudited with its cause, as [ErrorsExcept] finds it among other errors.
type unaudited struct{ error }

func (e unaudited) Unwrap() error { return e.error }

// acted is audited for an act about one thing.
func (c *Client) acted(ctx context.Context, place script.Place, filter string, err error) error {
	if err != nil {
		return c.audited(ctx, place, filter, 0, err)
	}
	return c.audited(ctx, place, filter, 1, nil)
}

// Note records an act of the actor of ctx that is none of the calls of [WithActor], such as an
// enqueue by an operator.
func (friends) Note(ctx context.Context, c *Client, act, topic, id, filter string, count int64) error {
	return c.audited(ctx, script.Place{Call: act, Topic: topic, Job: id}, filter, count, nil)
}

// audit records an operation that has ended with err, and returns the error of the call.
func (c *Client) audit(ctx context.Context, o *commit.Op, err error) error {
	if ctx == nil || actorOf(ctx) == "" {
		return err
	}
	filter := ""
	switch {
	case o.Move != nil:
		filter = dueText(&o.Move.Due)
	case o.Reason != "":
		filter = fmt.Sprintf("reason %q", o.Reason)
	}
	return c.acted(ctx, o.Place(), filter, err)
}

// dueText returns a due time for the audit.
func dueText(o *record.Options) string {
	if o.DueAt > 0 {
		return "due " + msTime(o.DueAt).UTC().Format(time.RFC3339Nano)
	}
	return "due in " + ofMS(o.DueIn).String()
}

// auditBatch records a batch of n jobs, and returns its error. at returns a job and its own error.
func (c *Client) auditBatch(ctx context.Context, k *commit.Kind, n int, at func(i int) (JobRef, error), err error) error {
	if ctx == nil || actorOf(ctx) == "" || n == 0 {
		return err
	}
	first, _ := at(0)
	place, count, unknown := script.Place{Call: k.Name, Topic: first.Topic}, int64(0), false
	for i := range n {
		job, failed := at(i)
		if failed == nil {
			count++
		}
		unknown = unknown || errors.Is(failed, ErrUnknownOutcome) // err has only some of the errors
		if job.Topic != first.Topic {
			place.Topic = ""
		}
	}
	var text strings.Builder // as many jobs as fit
	for i := 0; i < n && text.Len() <= record.MaxFilter; i++ {
		job, _ := at(i)
		if i > 0 {
			text.WriteString(", ")
		}
		if place.Topic == "" {
			text.WriteString(strconv.Quote(job.Topic) + " ")
		}
		text.WriteString(strconv.Quote(job.ID))
	}
	return c.auditedIf(ctx, place, text.String(), count, unknown, err)
}

// text describes the query and the arguments of the action for the audit: all that decides which
// jobs are changed, and how. It does not have the text that is looked for in payloads.
func (r *application) text() string {
	q := &r.query
	words := []string{"state " + string(q.State)}
	add := func(given bool, format string, args ...any) {
		if given {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	add(!q.From.IsZero(), "from %s", q.From.UTC().Format(time.RFC3339Nano))
	add(!q.To.IsZero(), "to %s", q.To.UTC().Format(time.RFC3339Nano))
	add(q.Latest, "latest first")
	add(q.Key != "", "key %q", q.Key)
	add(q.IDPrefix != "", "ID prefix %q", q.IDPrefix)
	add(q.MinAttempt > 0, "min attempt %d", q.MinAttempt)
	for _, name := range slices.Sorted(maps.Keys(q.Headers)) {
		add(true, "header %q: %q", name, q.Headers[name])
	}
	add(q.Error != "", "error %q", q.Error)
	add(q.Failure != "", "failure %s", q.Failure)
	add(len(q.Payload) > 0, "payload with %d bytes", len(q.Payload))
	add(q.Cursor != "", "continued")
	add(r.action.kind == commit.Reschedule, "%s", dueText(&r.due.Options))
	add(r.action.reason != "", "reason %q", r.action.reason)
	add(r.opts.spread > 0, "spread over %v", r.opts.spread)
	add(r.opts.most > 0, "at most %d", r.opts.most)
	return strings.Join(words, ", ")
}
