package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

// allTopics is typed to act on many jobs of all topics.
const allTopics = "all topics"

const samples = 3 // jobs that a dry run shows of each topic and state

// A bulkRun is one execution of a command that acts on all jobs that match.
type bulkRun struct {
	*app
	v      *verb
	b      *bulk
	client *delayq.Client
	insp   *delayq.Inspector
	opts   []delayq.ApplyOption
	limit  int64 // 0: none
	asked  bool  // for the limit, with --at-most
	line   *statusLine
	parts  []*bulkPart

	shifted map[delayq.JobRef]bool // by --by, if there are several parts
}

// A bulkPart is the part of it in one topic and one state.
type bulkPart struct {
	q     delayq.Query
	n     int64 // jobs that match
	exact bool  // otherwise there may be more
}

// actOnAll acts on all jobs that match, in a topic or in all of them.
func (a *app) actOnAll(cmd *cobra.Command, v *verb, b *bulk, topics, states []string) error {
	r := &bulkRun{app: a, v: v, b: b, line: &statusLine{a: a, verb: v}, asked: cmd.Flags().Changed("at-most")}
	var err error
	if r.limit, err = b.limit(cmd); err != nil {
		return err
	}
	if r.client, err = a.queue(); err != nil {
		return err
	}
	if r.insp, err = a.inspector(); err != nil {
		return err
	}
	ctx := a.act(cmd.Context())
	if b.allTopics {
		if topics, err = r.insp.Topics(ctx); err != nil {
			return err
		}
	}
	for _, topic := range topics {
		q, err := b.query(cmd, a, topic)
		if err != nil {
			return err
		}
		for _, state := range states {
			q.State = delayq.State(state)
			r.parts = append(r.parts, &bulkPart{q: q})
		}
	}
	if cmd.Flags().Changed("spread") {
		r.opts = append(r.opts, delayq.Spread(b.spread))
	}
	if cmd.Flags().Changed("pace") {
		r.opts = append(r.opts, delayq.Pace(b.pace))
	}
	if b.allTopics || len(states) > 1 {
		return r.overAll(ctx)
	}
	return r.overOne(ctx, r.parts[0])
}

// count finds out how many jobs of a part match. exactly looks at all of them.
func (r *bulkRun) count(ctx context.Context, p *bulkPart, exactly bool) (err error) {
	if p.n, p.exact, err = r.insp.Count(ctx, p.q); err != nil || p.exact || !exactly {
		return err
	}
	counted, err := r.client.Apply(ctx, p.q, r.v.action(), delayq.DryRun(), delayq.OnProgress(r.line.show))
	p.n, p.exact = counted.Matched, true
	r.line.clear()
	return err
}

// overOne acts on the jobs of one topic and state.
func (r *bulkRun) overOne(ctx context.Context, p *bulkPart) error {
	switch {
	case r.b.dryRun:
		r.opts = append(r.opts, delayq.DryRun())
	case !r.b.yes:
		if err := r.count(ctx, p, r.in.terminal); err != nil { // a person waits until all have been looked at
			return err
		}
		about := number(p.n)
		if !p.exact {
			about = "at least " + about
		}
		question := fmt.Sprintf("%s %s %s of %s%s?", r.v.name, about, plural(p.n, string(p.q.State)+" job"), p.q.Topic, r.b.text())
		if p.n == 0 && p.exact {
			break
		}
		if err := r.confirm(ctx, false, question, p.q.Topic, p.n, p.exact); err != nil {
			return err
		}
	}
	done, err := r.perform(ctx, p, r.limit)
	if errors.Is(err, delayq.ErrInvalid) && done.Examined == 0 {
		return err // nothing was begun
	}
	return r.showOne(p, done, err)
}

// perform acts on the jobs of a part, on at most limit of them unless that is 0.
func (r *bulkRun) perform(ctx context.Context, p *bulkPart, limit int64) (*delayq.Applied, error) {
	defer r.line.clear()
	if r.v.shift != nil && *r.v.shift != 0 && !r.b.dryRun {
		return r.shift(ctx, p.q, *r.v.shift, limit)
	}
	opts := append(slices.Clone(r.opts), delayq.OnProgress(r.line.show))
	if limit > 0 {
		opts = append(opts, delayq.AtMost(limit))
	}
	done, err := r.client.Apply(ctx, p.q, r.v.action(), opts...)
	return done, r.acted(err)
}

// recordOf returns the record of a part.
func (r *bulkRun) recordOf(p *bulkPart, done *delayq.Applied) *bulkRecord {
	return &bulkRecord{
		Topic: p.q.Topic, State: string(p.q.State), Act: r.v.name, DryRun: r.b.dryRun, Matched: done.Matched, Done: done.Done, Skipped: done.Skipped,
		Failed: done.Failed, Examined: done.Examined, Next: done.Next,
	}
}

// endedBy reports whether an act has ended before its last job with err. Otherwise err is about
// single jobs.
func (b *bulkRecord) endedBy(err error) bool {
	return b.Failed == 0 || b.Next != "" || unreachable(err) || refused(err)
}

// outcome returns the sentence about what was done.
func (r *bulkRun) outcome(done, skipped, failed int64) string {
	text := fmt.Sprintf("%s %s", count(done, "job"), r.v.past)
	if skipped > 0 {
		text += fmt.Sprintf(", %s skipped because they had moved on", number(skipped))
	}
	if failed > 0 {
		text += fmt.Sprintf(", %s failed", number(failed))
	}
	return text
}

// showOne writes the outcome for one topic and state, which ended with err.
func (r *bulkRun) showOne(p *bulkPart, done *delayq.Applied, err error) error {
	b := r.recordOf(p, done)
	written := object(r.app, schemaBulk, b, "", func(w io.Writer) error {
		if b.DryRun {
			_, err := fmt.Fprintf(w, "%s would be %s\n", count(b.Matched, b.State+" job"), r.v.past)
			return err
		}
		_, err := fmt.Fprintln(w, r.outcome(b.Done, b.Skipped, b.Failed))
		return err
	})
	if flushed := r.flush(); written == nil {
		written = flushed
	}
	if b.Next != "" && !b.DryRun {
		r.say("jobs are left; to go on: --cursor %s", b.Next)
	}
	switch {
	case err != nil && !b.endedBy(err): // it went on to the end
		return &exitCode{exitPartly, errorText(err)}
	case err != nil:
		return err
	case written != nil:
		return written
	case b.Next != "" && !b.DryRun && !r.asked: // --at-most was not given, so more was wanted
		return &exitCode{code: exitPartly}
	}
	return nil
}

// overAll acts on the jobs of several topics or states.
func (r *bulkRun) overAll(ctx context.Context) error {
	total, topics := int64(0), map[string]bool{}
	found := r.parts[:0]
	for _, p := range r.parts {
		if err := r.count(ctx, p, r.b.dryRun || r.in.terminal); err != nil {
			return fmt.Errorf("count %s jobs of %s: %w", p.q.State, p.q.Topic, err)
		}
		if p.n > 0 || !p.exact {
			found = append(found, p)
			total += p.n
			topics[p.q.Topic] = true
		}
	}
	r.parts = found
	if r.b.dryRun {
		return r.showDryRun(ctx, total)
	}
	if !r.b.yes && len(found) > 0 {
		exact := true
		for _, p := range found {
			r.say("%s: %s", p.q.Topic, count(p.n, string(p.q.State)+" job"))
			exact = exact && p.exact
		}
		about := number(total)
		if !exact {
			about = "at least " + about
		}
		question := fmt.Sprintf("%s %s of %s%s?", r.v.name, about+" "+plural(total, "job"), count(len(topics), "topic"), r.b.text())
		word := allTopics
		if !r.b.allTopics {
			word = found[0].q.Topic
		}
		if err := r.confirm(ctx, false, question, word, total, exact); err != nil {
			return err
		}
	}
	p, err := lists(r.app, r.bulkView())
	if err != nil {
		return err
	}
	var sum bulkRecord
	var stopped error
	left := r.limit
	r.shifted = map[delayq.JobRef]bool{}
	for i, part := range found {
		done, err := r.perform(ctx, part, left)
		b := r.recordOf(part, done)
		if err := p.row(b); err != nil {
			return err
		}
		sum.Done, sum.Skipped, sum.Failed = sum.Done+b.Done, sum.Skipped+b.Skipped, sum.Failed+b.Failed
		if b.Next != "" {
			sum.Next = b.Next
		}
		if err != nil {
			err = fmt.Errorf("%s jobs of %s: %w", part.q.State, part.q.Topic, err)
			if b.endedBy(err) {
				stopped = err
				break
			}
			r.say("%s", errorText(err))
		}
		if left -= b.Done + b.Failed; r.limit > 0 && left <= 0 {
			if i+1 < len(found) {
				sum.Next = "more"
			}
			break
		}
	}
	if err := p.end(nil); err != nil {
		return err
	}
	if err := r.flush(); err != nil {
		return err
	}
	if r.tabular() {
		r.say("%s", r.outcome(sum.Done, sum.Skipped, sum.Failed))
	}
	switch {
	case stopped != nil && codeOf(stopped) == exitUsage && sum.Done+sum.Failed > 0: // of a later part
		return &exitCode{exitPartly, errorText(stopped)}
	case stopped != nil:
		return stopped
	case sum.Failed > 0:
		return &exitCode{code: exitPartly}
	case sum.Next != "":
		r.say("jobs are left")
		if !r.asked {
			return &exitCode{code: exitPartly}
		}
	}
	return nil
}

// showDryRun writes what would be done by topic and state.
func (r *bulkRun) showDryRun(ctx context.Context, total int64) error {
	p, err := lists(r.app, r.bulkView())
	if err != nil {
		return err
	}
	for _, part := range r.parts {
		b := r.recordOf(part, &delayq.Applied{Matched: part.n})
		q := part.q
		q.Limit = samples
		page, err := r.insp.Jobs(ctx, q)
		if err != nil {
			return err
		}
		for _, job := range page.Jobs {
			b.Sample = append(b.Sample, refOf(job.Topic, job.ID))
		}
		if err := p.row(b); err != nil {
			return err
		}
	}
	if err := p.end(nil); err != nil {
		return err
	}
	if err := r.flush(); err != nil || !r.tabular() {
		return err
	}
	r.say("%s would be %s", count(total, "job"), r.v.past)
	return nil
}

// bulkView is how the parts of an act on all topics are written.
func (r *bulkRun) bulkView() view[*bulkRecord] {
	v := view[*bulkRecord]{schemaBulk, schemaBulks, "parts", []column[*bulkRecord]{
		{head: "TOPIC", cell: func(b *bulkRecord) string { return b.Topic }},
		{head: "STATE", cell: func(b *bulkRecord) string { return b.State }},
	}, nil, nil}
	if r.b.dryRun {
		v.columns = append(v.columns, column[*bulkRecord]{head: "JOBS", cell: func(b *bulkRecord) string { return number(b.Matched) }, right: true},
			column[*bulkRecord]{head: "FOR EXAMPLE", cell: func(b *bulkRecord) string {
				var list []string
				for _, ref := range b.Sample {
					list = append(list, idText(ref.exact()))
				}
				return strings.Join(list, ", ")
			}})
		return v
	}
	for _, c := range []struct {
		head string
		n    func(b *bulkRecord) int64
	}{
		{"DONE", func(b *bulkRecord) int64 { return b.Done }}, {"SKIPPED", func(b *bulkRecord) int64 { return b.Skipped }},
		{"FAILED", func(b *bulkRecord) int64 { return b.Failed }},
	} {
		v.columns = append(v.columns, column[*bulkRecord]{head: c.head, cell: func(b *bulkRecord) string { return number(c.n(b)) }, right: true})
	}
	return v
}
