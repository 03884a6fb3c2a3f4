package delayq

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
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
// [Client.SetPriority], [Client.RemoveTopic], [Client.Schedule], [Client.ScheduleBatch],
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
	Topic  string // empty for a batch of several topics
	ID     string // of a job, or the name of a schedule; empty for other acts
	Filter string // the jobs or schedules of a batch, or the arguments of the call; at most 2 KiB
	// Was is what the act has changed, as it was before, in at most 2 KiB: limits, a pause, a hold,
	// a priority, a due time, the state of a job, the changed parts of a schedule. It is "none" if
	// there was nothing, such as no limits of a topic. It is empty if nobody knows it: if the
	// outcome is unknown, and for Apply, Repair, RemoveTopic and Trigger. Of a payload, Was and
	// Filter have the size and the first 8 digits of the SHA-256, or only the size of a large one
	// of a schedule that was removed. Of headers they have the names and sizes.
	Was   string
	Count int64 // what was changed: jobs, a schedule, a topic or repairs; 0: the outcome is unknown
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
// the act, filter has its arguments, was what was there before, and count is what it has changed.
// An act that has changed nothing is not recorded, unless its outcome is unknown.
func (c *Client) audited(ctx context.Context, place script.Place, filter, was string, count int64, err error) error {
	return c.auditedIf(ctx, place, filter, was, count, errors.Is(err, ErrUnknownOutcome), err)
}

// auditedIf is audited for an act whose error does not say whether its outcome is unknown.
func (c *Client) auditedIf(ctx context.Context, place script.Place, filter, was string, count int64, unknown bool, err error) error {
	if c == nil || ctx == nil {
		return err
	}
	actor := actorOf(ctx)
	if actor == "" || count == 0 && !unknown {
		return err
	}
	act := record.AuditEntry{
		Actor: actor, Action: place.Call, Topic: place.Topic, ID: cmp.Or(place.Job, place.Schedule), Filter: filter, Was: was, Count: count,
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

// acted is audited for an act about one thing. After an error nobody knows what was before.
func (c *Client) acted(ctx context.Context, place script.Place, filter, was string, err error) error {
	if err != nil {
		return c.audited(ctx, place, filter, "", 0, err)
	}
	return c.audited(ctx, place, filter, was, 1, nil)
}

// Note records an act of the actor of ctx that is none of the calls of [WithActor], such as an
// enqueue by an operator.
func (friends) Note(ctx context.Context, c *Client, act, topic, id, filter string, count int64) error {
	return c.audited(ctx, script.Place{Call: act, Topic: topic, Job: id}, filter, "", count, nil)
}

// audit records an operation that has ended with err, and returns the error of the call.
func (c *Client) audit(ctx context.Context, o *commit.Op, err error) error {
	if ctx == nil || actorOf(ctx) == "" {
		return err
	}
	was := ""
	if err == nil { // otherwise the operation can still be on its way, and is not read
		was = wasOf(o)
	}
	return c.acted(ctx, o.Place(), argumentsOf(o), was, err)
}

// argumentsOf returns the arguments of an operation for the audit.
func argumentsOf(o *commit.Op) string {
	switch {
	case o.Move != nil:
		return dueText(&o.Move.Due)
	case o.Reason != "":
		return fmt.Sprintf("reason %q", o.Reason)
	}
	return ""
}

// wasOf returns the state in which an operation has found its job, for the audit.
func wasOf(o *commit.Op) string { return stateText(states[o.Letter], orZero(o.Was)) }

// stateText returns the state of a job for the audit, with its due time if that is known.
func stateText(s State, due time.Time) string {
	if s != StateScheduled || due.IsZero() {
		return string(s)
	}
	return string(s) + ", " + instantText("due", due)
}

// instantText returns a name and a time.
func instantText(name string, at time.Time) string {
	return name + " " + at.UTC().Format(time.RFC3339Nano)
}

// A previous is what was before a batch, as much as an entry of the audit holds.
type previous struct {
	several bool // topics
	entries []previousEntry
	size    int // of their texts
}

// A previousEntry is about the job with an index in the batch.
type previousEntry struct {
	at   int
	text string
}

// newPrevious returns one for n jobs, or nil if the batch is not recorded.
func newPrevious(ctx context.Context, n int, topic func(i int) string) *previous {
	if ctx == nil || actorOf(ctx) == "" {
		return nil
	}
	p := &previous{}
	for i := 1; i < n && !p.several; i++ {
		p.several = topic(i) != topic(0)
	}
	return p
}

// add notes the job with an index in the batch, and the operation that has changed it.
func (p *previous) add(i int, o *commit.Op) {
	if p == nil || p.size > record.MaxFilter {
		return
	}
	text := strconv.Quote(o.ID) + " " + wasOf(o)
	if p.several {
		text = strconv.Quote(o.Topic) + " " + text
	}
	p.entries = append(p.entries, previousEntry{i, text})
	p.size += len(text)
}

// text returns the notes in the order of the batch: its topics are acted on side by side.
func (p *previous) text() string {
	slices.SortFunc(p.entries, func(a, b previousEntry) int { return cmp.Compare(a.at, b.at) })
	var text strings.Builder
	for i, e := range p.entries {
		if i > 0 {
			text.WriteString("; ")
		}
		text.WriteString(e.text)
	}
	return text.String()
}

// dueText returns a due time for the audit.
func dueText(o *record.Options) string {
	if o.DueAt > 0 {
		return instantText("due", msTime(o.DueAt))
	}
	return "due in " + ofMS(o.DueIn).String()
}

// auditBatch records a batch of n jobs, and returns its error. at returns a job and its own error,
// and set what was set for it, or "".
func (c *Client) auditBatch(ctx context.Context, k *commit.Kind, n int, at func(i int) (JobRef, error), set func(i int) string, p *previous, err error) error {
	if p == nil || n == 0 {
		return err
	}
	first, _ := at(0)
	place, count, unknown := script.Place{Call: k.Name, Topic: first.Topic}, int64(0), false
	if p.several {
		place.Topic = ""
	}
	for i := range n {
		_, failed := at(i)
		if failed == nil {
			count++
		}
		unknown = unknown || errors.Is(failed, ErrUnknownOutcome) // err has only some of the errors
	}
	var text strings.Builder // as many jobs as fit
	for i := 0; i < n && text.Len() <= record.MaxFilter; i++ {
		job, _ := at(i)
		if i > 0 {
			text.WriteString(", ")
		}
		if p.several {
			text.WriteString(strconv.Quote(job.Topic) + " ")
		}
		text.WriteString(strconv.Quote(job.ID) + set(i))
	}
	return c.auditedIf(ctx, place, text.String(), p.text(), count, unknown, err)
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

// pausesText describes pauses, or a hold, that were in effect at now.
func pausesText(encoded string, now int64) string {
	var list []string
	for _, p := range record.DecodePauses(encoded, now) {
		text := fmt.Sprintf("by %q", p.By)
		if p.Reason != "" {
			text += fmt.Sprintf(", reason %q", p.Reason)
		}
		if p.Since > 0 {
			text += ", " + instantText("since", msTime(p.Since))
		}
		if p.Until > 0 {
			text += ", " + instantText("until", msTime(p.Until))
		}
		list = append(list, text)
	}
	return cmp.Or(strings.Join(list, "; "), "none")
}

// keyHoldText describes the hold of a key that ends at a score.
func keyHoldText(score string, now int64) string {
	paused, until := keyHold(score)
	switch {
	case paused:
		return "paused"
	case until.UnixMilli() <= now:
		return "none"
	}
	return instantText("until", until)
}

// priorityText describes a head start as priority.lua returns it.
func priorityText(start string) string {
	ms, err := strconv.ParseInt(start, 10, 64)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("priority %v", ofMS(ms-1<<31))
}

// scheduleText describes the state in which schedule_pause has found a schedule. since is when it
// was paused.
func scheduleText(since string) string {
	if since == "" {
		return "active"
	}
	return "paused, " + instantText("since", scoreTime(since))
}

// A revision is a change of the definition of a schedule. The script has made sure that nobody else
// has changed it since raw was read.
type revision struct {
	raw string      // the old one, encoded; empty: there was none
	old *definition // nil: there was none, or it cannot be read
	to  *definition
}

// texts returns the parts that have changed, as they are and as they were. It is safe on nil.
func (r *revision) texts() (now, was string) {
	if r == nil {
		return "", ""
	}
	from := r.old
	if from == nil {
		from = newDefinition(Spec{}, nil, nil)
	}
	names := differences(&r.to.Definition, &from.Definition)
	now, was = partsText(&r.to.Definition, names), partsText(&from.Definition, names)
	switch {
	case r.raw == "":
		was = "none"
	case r.old == nil:
		was = "unreadable"
	case r.old.Edit.Parts != "" && r.to.Edit.Parts == "":
		now, was = joined(now, "no edits"), joined(was, "edits of "+r.old.Edit.Parts)
	}
	return now, was
}

// removedText describes a definition that is gone. raw is its beginning.
func removedText(raw string) string {
	d, err := record.DecodeDefinition(raw)
	if err != nil {
		if d, err = record.DecodeDefinitionMeta(raw); err != nil {
			return ""
		}
	}
	return partsText(d, differences(d, &newDefinition(Spec{}, nil, nil).Definition))
}

// partsText describes parts of a definition.
func partsText(d *record.Definition, names []string) string {
	var list []string
	for _, p := range parts {
		if slices.Contains(names, p.name) {
			list = append(list, p.name+" "+cmp.Or(p.text(d), "none"))
		}
	}
	return strings.Join(list, ", ")
}

// joined returns two texts with a comma between them. a can be empty.
func joined(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}

// Texts of parts. They are empty for what is not set.

func momentText(ms int64) string {
	if ms == 0 {
		return ""
	}
	return msTime(ms).UTC().Format(time.RFC3339Nano)
}

func spanText(ms int64) string {
	if ms == 0 {
		return ""
	}
	return ofMS(ms).String()
}

// payloadText tells payloads apart without showing them. d can lack the payload itself.
func payloadText(d *record.Definition) string {
	switch {
	case d.Size == 0:
		return ""
	case len(d.Payload) != d.Size:
		return fmt.Sprintf("of %d bytes", d.Size)
	}
	sum := sha256.Sum256(d.Payload)
	return fmt.Sprintf("of %d bytes, SHA-256 %x", d.Size, sum[:4])
}

// headersText has the names of headers, and the sizes of their values, which can be secret.
func headersText(d *record.Definition) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(d.Job.Headers)) {
		list = append(list, fmt.Sprintf("header %q of %d bytes", name, len(d.Job.Headers[name])))
	}
	return strings.Join(list, ", ")
}

func maxRunsText(d *record.Definition) string {
	if d.Most == 0 {
		return ""
	}
	return strconv.FormatInt(d.Most, 10)
}

func retryText(d *record.Definition) string {
	switch n := d.Job.Retry; {
	case n == record.NotSet:
		return ""
	case n < 0:
		return "unlimited"
	default:
		return strconv.Itoa(n)
	}
}

func backoffText(d *record.Definition) string {
	if d.Job.BackoffMax == 0 {
		return ""
	}
	return spanText(d.Job.BackoffMin) + " to " + spanText(d.Job.BackoffMax)
}

func keyText(d *record.Definition) string {
	switch {
	case d.Job.Key == "":
		return ""
	case d.Job.HeadStart == 0:
		return strconv.Quote(d.Job.Key)
	}
	return fmt.Sprintf("%q, priority %v", d.Job.Key, ofMS(d.Job.HeadStart))
}
