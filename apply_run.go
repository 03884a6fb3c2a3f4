package delayq

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/contain"
)

// count counts the jobs that match, for a DryRun.
func (r *application) count(ctx context.Context) error {
	q, most := r.query, r.opts.most
	if q.Cursor == "" && most == 0 && !q.filtered() {
		n, _, err := r.client.inspector().Count(ctx, q)
		r.sum.Matched = n
		return err
	}
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		q.Limit, q.Cursor = maxLimit, r.sum.Next
		if most > 0 {
			q.Limit = int(min(maxLimit, most-r.sum.Matched))
		}
		page, err := r.read(ctx, q)
		if err != nil {
			return err
		}
		r.sum.Matched += int64(len(page.Jobs))
		r.sum.Examined += int64(page.Examined)
		r.sum.Next = page.Next
		r.report()
		if page.Next == "" || most > 0 && r.sum.Matched >= most {
			return nil
		}
	}
}

// A step is a page of jobs that Redis is acting on.
type step struct {
	page  *Page
	batch *commit.Batch // nil: there is nothing to do
	jobs  int           // in batch
	over  bool          // the jobs behind the page are to be left alone
	stop  error         // why the next page must not be acted on
}

// run acts on page after page. While Redis acts on the jobs of one, the next one is read, and its
// jobs are sent too.
func (r *application) run(ctx context.Context) error {
	reading, stop := context.WithCancel(ctx)
	next, acting := &ahead{}, []*step(nil) // acting: their outcomes are not counted yet
	defer func() {
		stop()
		_, _ = next.page()
		for _, s := range acting { // the function of OnProgress has panicked
			s.close()
		}
	}()
	var unread, stopped error
	var began time.Time // of the last step
	var acted int64     // before it
	for at, more := r.sum.Next, true; ; {
		if q := r.pageAt(at, acting); more && q.Limit > 0 && len(acting) < r.depth() {
			var page *Page
			if unread = r.wait(ctx, began, r.acted()-acted); unread == nil {
				page, unread = r.following(ctx, next, q)
			}
			if more = unread == nil; more {
				began, acted = time.Now(), r.acted()
				acting = append(acting, r.begin(ctx, page))
				at, more = page.Next, page.Next != "" && !r.over
				next = r.readAhead(reading, r.pageAt(at, acting), more)
			}
			continue
		}
		if len(acting) == 0 {
			return cmp.Or(stopped, unread)
		}
		s := acting[0]
		acting = acting[1:]
		r.finish(s)
		if stopped = cmp.Or(stopped, s.stop); stopped == nil {
			r.sum.Next = s.page.Next
			if s.over {
				r.sum.Next = ""
			}
		}
		more = more && stopped == nil
		r.report()
	}
}

// depth returns how many pages Redis may be told to act on before their outcomes are known. It is
// one where the page after them may not be read ahead, and where OnProgress may end the context: no
// call is on its way then.
func (r *application) depth() int {
	if r.readsAhead() && r.opts.progress == nil {
		return 2
	}
	return 1
}

// readsAhead reports whether a page is read while Redis acts on the one before it. It is not if it
// would be old by its turn, because of Pace. Of ready and running jobs, places are harder to find
// again when the jobs before them are acted on at the same time.
func (r *application) readsAhead() bool { return r.opts.pace == 0 && r.query.indexed() }

// following returns the page that next reads, and reads it if that is none.
func (r *application) following(ctx context.Context, next *ahead, q Query) (*Page, error) {
	if next.done == nil {
		return r.read(ctx, q)
	}
	return next.page()
}

// pageAt returns the query of the page at a place. acting is the steps before it.
func (r *application) pageAt(at Cursor, acting []*step) Query {
	q, open := r.query, 0
	for _, s := range acting {
		open += s.jobs
	}
	q.Cursor = at
	if r.opts.pace > 0 {
		q.Limit = min(q.Limit, max(1, r.opts.pace/10))
	}
	if r.opts.most > 0 {
		q.Limit = int(min(int64(q.Limit), r.opts.most-r.sum.Done-r.sum.Failed-int64(open)))
	}
	return q
}

// read reads a page. Nothing but the places of its jobs is needed.
func (r *application) read(ctx context.Context, q Query) (*Page, error) {
	return r.client.inspector().jobs(ctx, q, true)
}

// An ahead is a page that is read on a goroutine of its own. The zero value is none.
type ahead struct {
	done chan struct{} // closed when the goroutine has ended; nil: there is none
	read *Page
	err  error
}

// page waits for the page.
func (a *ahead) page() (*Page, error) {
	if a.done != nil {
		<-a.done
	}
	return a.read, a.err
}

// readAhead begins to read a page, if it is needed and may be read ahead.
func (r *application) readAhead(ctx context.Context, q Query, needed bool) *ahead {
	a := &ahead{}
	if !needed || q.Limit < 1 || !r.readsAhead() {
		return a
	}
	a.done = make(chan struct{})
	contain.Launch(nil, func() {
		a.read, a.err = r.read(ctx, q)
		close(a.done)
	}, func(c *contain.Crash) {
		a.err = c
		close(a.done)
	})
	return a
}

// acted returns the number of jobs that have an outcome.
func (r *application) acted() int64 { return r.sum.Done + r.sum.Skipped + r.sum.Failed }

// wait waits until Pace allows another step after one that began then and acted on so many jobs.
// What a slow step or a long search has left unused is not made up for. wait returns the cause if
// ctx is done.
func (r *application) wait(ctx context.Context, began time.Time, acted int64) error {
	if r.opts.pace > 0 {
		timer := time.NewTimer(time.Until(began.Add(time.Duration(float64(acted) / float64(r.opts.pace) * float64(time.Second)))))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

// report calls OnProgress.
func (r *application) report() {
	if r.opts.progress != nil {
		sum := r.sum
		sum.Errs = slices.Clone(sum.Errs)
		r.opts.progress(sum)
	}
}
