package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/fromasynq"
)

const (
	schemaAsynqPart   = "delayq.asynq-part/1"
	schemaAsynqImport = "delayq.asynq-import/1"
)

const (
	asynqHeader   = "asynq-queue"             // has the queue from which a job was moved
	asynqParts    = 1000                      // lines of the outcome; all further types share one
	asynqProblems = 20                        // tasks that are named
	burialTime    = 10 * 365 * 24 * time.Hour // after which a job would run if it were not buried at once
	longest       = 100 * 365 * 24 * time.Hour
	mostReason    = 1 << 10 // bytes of the reason of a burial
)

// An asynqKey names a part.
type asynqKey struct{ queue, state, kind, topic string }

func (k asynqKey) compare(o asynqKey) int {
	return cmp.Or(cmp.Compare(k.queue, o.queue), cmp.Compare(k.state, o.state), cmp.Compare(k.kind, o.kind), cmp.Compare(k.topic, o.topic))
}

// An asynqPart is what became of the tasks of a queue, a state and a type.
type asynqPart struct {
	Queue string `json:"queue"`
	State string `json:"state"`
	Type  string `json:"type"`
	Topic string `json:"topic"`
	asynqCounts
}

// asynqCounts count tasks. A dry run counts as stored what would be stored.
type asynqCounts struct {
	Stored     int64 `json:"stored"`
	Duplicates int64 `json:"duplicates"` // their jobs are there, or have been
	Conflicts  int64 `json:"conflicts"`  // another job has the ID
	Left       int64 `json:"left"`       // those that wait in groups, and archived ones that are skipped
	Failed     int64 `json:"failed"`     // those that cannot be moved
	Started    int64 `json:"started"`    // those that have moved on in asynq before they were deleted there
	Deleted    int64 `json:"deleted"`    // from asynq
}

// An asynqTotals is what import asynq writes besides.
type asynqTotals struct {
	DryRun bool `json:"dry_run"`
	asynqCounts
	Active     int64          `json:"active"`    // tasks that run
	Completed  int64          `json:"completed"` // tasks whose results asynq keeps
	Unique     int64          `json:"unique"`    // tasks that hold a unique lock
	Groups     int64          `json:"groups"`
	GroupNames []string       `json:"group_names,omitempty"` // of the first ones
	Sets       int64          `json:"sets"`                  // of tasks of a group that are being made one
	Problems   []asynqProblem `json:"problems,omitempty"`    // the first ones
}

// An asynqProblem is a task that is not moved.
type asynqProblem struct {
	Queue string `json:"queue"`
	State string `json:"state"`
	Type  string `json:"type"`
	jobRef
	Error string `json:"error"`
}

// An asynqItem is a task on its way.
type asynqItem struct {
	task   *fromasynq.Task
	job    delayq.NewJob
	part   *asynqPart
	stored bool // now
	bury   bool // the job is to be dead, and is not yet
	err    error
}

// batch moves a few tasks. It returns how many it has deleted from asynq.
func (i *asynqImport) batch(ctx context.Context, tasks []*fromasynq.Task, served bool) (deleted int, err error) {
	var items []*asynqItem
	for _, t := range tasks {
		if item := i.item(t); item != nil {
			items = append(items, item)
		}
	}
	there, err := i.store(ctx, items)
	if err != nil || !i.yes || !i.remove {
		return 0, err
	}
	return i.drop(ctx, there, served)
}

// item returns what is to be done with a task, or nil.
func (i *asynqImport) item(t *fromasynq.Task) *asynqItem {
	if len(i.types) > 0 && !i.wanted(t.Type) {
		return nil
	}
	item := &asynqItem{task: t, job: delayq.NewJob{Topic: i.topicOf(t.Queue, t.Type), ID: t.ID, Payload: t.Payload}}
	item.part = i.part(t, item.job.Topic)
	if t.UniqueKey != "" {
		i.sum.Unique++
	}
	switch {
	case t.Broken != nil:
		i.fail(item, t.Broken)
	case t.Group != "" && !i.groups: // it is scheduled, and then waits in the group
		i.count(item, func(c *asynqCounts) { c.Left++ })
	default:
		if err := i.options(item); err != nil {
			i.fail(item, err)
			return nil
		}
		return item
	}
	return nil
}

func (i *asynqImport) wanted(kind string) bool {
	for _, named := range i.types {
		if asynqTypeFits(named, kind) {
			return true
		}
	}
	return false
}

// part returns the part that counts a task.
func (i *asynqImport) part(t *fromasynq.Task, topic string) *asynqPart {
	key := asynqKey{t.Queue, string(t.State), t.Type, topic}
	if i.parts[key] == nil && len(i.parts) >= asynqParts {
		key = asynqKey{t.Queue, string(t.State), "…", "…"}
	}
	if i.parts[key] == nil {
		text := func(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
		i.parts[key] = &asynqPart{Queue: text(key.queue), State: key.state, Type: text(key.kind), Topic: text(key.topic)}
	}
	return i.parts[key]
}

// count adds to the counts of a part, and to the totals.
func (i *asynqImport) count(item *asynqItem, add func(*asynqCounts)) {
	add(&item.part.asynqCounts)
	add(&i.sum.asynqCounts)
}

func (i *asynqImport) fail(item *asynqItem, err error) {
	i.count(item, func(c *asynqCounts) { c.Failed++ })
	i.problem(item, err)
}

// problem names a task that is not moved.
func (i *asynqImport) problem(item *asynqItem, err error) {
	if len(i.sum.Problems) < asynqProblems {
		i.sum.Problems = append(i.sum.Problems, asynqProblem{
			Queue: item.part.Queue, State: item.part.State, Type: item.part.Type, jobRef: refOf(item.part.Topic, item.task.ID), Error: errorText(err),
		})
	}
}

// options gives the job what the task has.
func (i *asynqImport) options(item *asynqItem) error {
	t := item.task
	due, retries := i.at, t.MaxRetry-t.Retried
	switch {
	case t.State == fromasynq.Scheduled || t.State == fromasynq.Retry:
		due = time.Unix(t.Score, 0)
	case t.State == fromasynq.Archived:
		retries = t.MaxRetry
	}
	opts := []delayq.JobOption{delayq.Retry(max(retries, 0)), delayq.Header(asynqHeader, t.Queue)}
	if t.Timeout > 0 {
		opts = append(opts, delayq.Timeout(t.Timeout))
	}
	if t.Retention > 0 {
		opts = append(opts, delayq.Retention(t.Retention))
	}
	if t.Group != "" {
		opts = append(opts, delayq.Key(t.Group))
	}
	for key, value := range t.Headers {
		opts = append(opts, delayq.Header(key, value))
	}
	if _, taken := t.Headers[asynqHeader]; taken {
		return fmt.Errorf("it has a header %q of its own", asynqHeader)
	}
	if !t.Deadline.IsZero() && t.State != fromasynq.Archived {
		if !t.Deadline.After(i.at) || !t.Deadline.After(due) {
			return fmt.Errorf("its deadline %s is over, or before its time", t.Deadline.UTC().Format(time.RFC3339))
		}
		opts = append(opts, delayq.ExpireAt(t.Deadline))
	}
	switch wait := due.Sub(i.at); {
	case i.toBury(t):
		opts = append(opts, delayq.ProcessIn(burialTime))
	case wait > 0:
		opts = append(opts, delayq.ProcessAt(due))
	}
	if i.remember > 0 {
		closed := max(due.Sub(i.at), 0) + i.remember
		opts = append(opts, delayq.UniqueFor(min(max(closed, i.remember), longest)))
	}
	item.job.Options = opts
	return nil
}

// toBury reports whether the job of a task is to be dead.
func (i *asynqImport) toBury(t *fromasynq.Task) bool {
	return t.State == fromasynq.Archived && i.archived == archivedDead
}

// store stores jobs, or finds out whether they could be stored. It returns those that are stored,
// by this execution or by an earlier one.
func (i *asynqImport) store(ctx context.Context, items []*asynqItem) (there []*asynqItem, err error) {
	jobs := make([]delayq.NewJob, len(items))
	for n, item := range items {
		jobs[n] = item.job
	}
	sent := ctx
	if !i.yes { // what the library refuses is refused before a request is sent
		over, cancel := context.WithCancel(ctx)
		cancel()
		sent = over
	}
	results, _ := i.client.EnqueueBatch(sent, jobs) // each result has its error
	var taken []*asynqItem
	for n, r := range results {
		item := items[n]
		switch {
		case r.Err == nil:
			item.stored, item.bury = true, i.toBury(item.task)
			there = append(there, item)
			i.count(item, func(c *asynqCounts) { c.Stored++ })
		case errors.Is(r.Err, delayq.ErrDuplicate), !i.yes && errors.Is(r.Err, context.Canceled):
			item.err = r.Err
			taken = append(taken, item)
		case errors.Is(r.Err, delayq.ErrInvalid), errors.Is(r.Err, delayq.ErrTooManyTombs):
			i.fail(item, bare(r.Err))
		default:
			i.fail(item, r.Err)
			err = r.Err
		}
	}
	if err != nil || ctx.Err() != nil {
		return nil, cmp.Or(err, ctx.Err())
	}
	also, err := i.compare(ctx, taken)
	if err != nil {
		return nil, err
	}
	return i.bury(ctx, append(there, also...))
}

// compare finds out which jobs have the IDs of tasks. It returns the tasks whose jobs those are.
func (i *asynqImport) compare(ctx context.Context, taken []*asynqItem) (same []*asynqItem, err error) {
	refs := make([]delayq.JobRef, len(taken))
	for n, item := range taken {
		refs[n] = delayq.JobRef{Topic: item.job.Topic, ID: item.job.ID}
	}
	var free []*asynqItem
	found, _ := i.client.GetBatch(ctx, refs) // each result has its error
	for n, r := range found {
		item := taken[n]
		switch {
		case r.Err == nil && r.Job.Headers[asynqHeader] == item.task.Queue && bytes.Equal(r.Job.Payload, item.task.Payload):
			// An execution that was interrupted may have left the burial to this one.
			item.bury = i.toBury(item.task) && r.Job.State == delayq.StateScheduled && r.Job.Due.After(i.at.Add(burialTime/2))
			same = append(same, item)
			i.count(item, func(c *asynqCounts) { c.Duplicates++ })
		case r.Err == nil:
			i.count(item, func(c *asynqCounts) { c.Conflicts++ })
			i.problem(item, fmt.Errorf("topic %q has another job with this ID, which is %s", item.job.Topic, r.Job.State))
		case !errors.Is(r.Err, delayq.ErrNotFound):
			return nil, r.Err
		case !i.yes:
			free = append(free, item)
		default: // the ID is closed, or the job has ended since
			i.count(item, func(c *asynqCounts) { c.Duplicates++ })
			if generatedID.MatchString(item.task.ID) {
				same = append(same, item) // no other task has this ID
			}
		}
	}
	return same, i.foresee(ctx, free)
}

// foresee counts what an execution with --yes would do with tasks whose IDs no job has.
func (i *asynqImport) foresee(ctx context.Context, free []*asynqItem) error {
	if len(free) == 0 {
		return nil
	}
	rdb, err := i.redis()
	if err != nil {
		return err
	}
	pipe := rdb.Pipeline()
	until := make([]*redis.FloatCmd, len(free))
	for n, item := range free {
		until[n] = pipe.ZScore(ctx, i.prefix+":{"+item.job.Topic+"}:all:tombs", item.job.ID)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("closed IDs: %w", err)
	}
	for n, item := range free {
		if int64(until[n].Val()) > i.at.UnixMilli() {
			i.count(item, func(c *asynqCounts) { c.Duplicates++ })
		} else {
			i.count(item, func(c *asynqCounts) { c.Stored++ })
		}
	}
	return nil
}

// bury buries the jobs of archived tasks.
func (i *asynqImport) bury(ctx context.Context, there []*asynqItem) ([]*asynqItem, error) {
	for _, item := range there {
		if !item.bury || !i.yes {
			continue
		}
		reason := "archived in asynq"
		if item.task.LastError != "" {
			reason += ": " + item.task.LastError
		}
		reason = strings.ToValidUTF8(reason[:min(len(reason), mostReason)], "")
		err := i.acted(i.client.Bury(ctx, item.job.Topic, item.job.ID, reason))
		if err != nil && !errors.Is(err, delayq.ErrDead) && !errors.Is(err, delayq.ErrNotFound) && !errors.Is(err, delayq.ErrRunning) {
			return nil, fmt.Errorf("bury %q: %w", item.job.ID, err)
		}
	}
	return there, nil
}

// drop deletes tasks whose jobs are stored. If a task has moved on in the meantime, it runs in
// asynq, so its job is taken back.
func (i *asynqImport) drop(ctx context.Context, there []*asynqItem, served bool) (deleted int, err error) {
	if len(there) == 0 {
		return 0, nil
	}
	tasks := make([]*fromasynq.Task, len(there))
	for n, item := range there {
		tasks[n] = item.task
	}
	done, err := i.reader.Delete(ctx, tasks, served)
	if err != nil {
		return 0, fmt.Errorf("delete from asynq: %w", err)
	}
	for n, item := range there {
		if done[n] {
			deleted++
			i.count(item, func(c *asynqCounts) { c.Deleted++ })
			continue
		}
		if !item.stored {
			continue // it was moved before, and somebody else has deleted the task
		}
		i.count(item, func(c *asynqCounts) { c.Stored--; c.Started++ })
		_, err := i.client.Dequeue(ctx, item.job.Topic, item.job.ID, delayq.Tombstone(0))
		switch err = i.acted(err); {
		case errors.Is(err, delayq.ErrNotFound):
			i.problem(item, errors.New("it has run in delayq, and started in asynq at the same time"))
		case err != nil:
			return deleted, fmt.Errorf("take back %q of topic %q: %w", item.job.ID, item.job.Topic, err)
		}
	}
	return deleted, nil
}

// asynqView is how the parts are written.
func (i *asynqImport) asynqView() view[*asynqPart] {
	v := view[*asynqPart]{schemaAsynqPart, schemaAsynqImport, "parts", []column[*asynqPart]{
		{head: "QUEUE", cell: func(p *asynqPart) string { return p.Queue }},
		{head: "STATE", cell: func(p *asynqPart) string { return p.State }},
		{head: "TYPE", cell: func(p *asynqPart) string { return p.Type }},
		{head: "TOPIC", cell: func(p *asynqPart) string { return p.Topic }},
	}, nil, nil}
	columns := []struct {
		head string
		n    func(p *asynqPart) int64
	}{
		{"NEW", func(p *asynqPart) int64 { return p.Stored }}, {"DUPLICATES", func(p *asynqPart) int64 { return p.Duplicates }},
		{"CONFLICTS", func(p *asynqPart) int64 { return p.Conflicts }}, {"LEFT", func(p *asynqPart) int64 { return p.Left }},
		{"FAILED", func(p *asynqPart) int64 { return p.Failed }}, {"STARTED", func(p *asynqPart) int64 { return p.Started }},
		{"DELETED", func(p *asynqPart) int64 { return p.Deleted }},
	}
	if i.yes {
		columns[0].head = "STORED"
	} else {
		columns = columns[:5]
	}
	for _, c := range columns {
		v.columns = append(v.columns, column[*asynqPart]{head: c.head, cell: func(p *asynqPart) string { return number(c.n(p)) }, right: true})
	}
	return v
}
