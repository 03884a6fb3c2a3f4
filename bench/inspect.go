package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/delayq/delayq"
)

// pageJobs is the number of jobs of a page.
const pageJobs = 100

// pagesInRow is how many pages are read one after the other before the walk
// begins somewhere else.
const pagesInRow = 20

// largePayload is the size of a large payload in bytes.
const largePayload = 1 << 20

// inspector reads through the counted client of a peer.
func inspector(p peer) *delayq.Inspector {
	return delayq.NewInspector(p.(*delayqPeer).rdb, delayqPrefix)
}

// pages measures pages of 100 jobs in a topic with as many jobs as count says.
// Scheduled ones are due in a day or two, and the walks begin anywhere among
// them. Walks of ready jobs begin at the head and go on.
func pages(state delayq.State, count func(sizes) int) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (sample, error) {
		start := time.Now()
		err := fill(ctx, p, topic, 0, count(b.sizes), func(int) job {
			if state == delayq.StateReady {
				return job{}
			}
			return job{in: anyDelay()}
		})
		if err != nil {
			return nil, err
		}
		q := delayq.Query{Topic: topic, State: state, Limit: pageJobs}
		return b.readPages(ctx, p, b.sizes.pages, q, func(q *delayq.Query, turn int) {
			switch {
			case state == delayq.StateScheduled && turn%pagesInRow == 0:
				q.Cursor, q.From = "", start.Add(anyDelay()*9/10)
			case q.Cursor == "":
				q.From = time.Time{}
			}
		})
	}
}

// largePages measures pages of jobs with payloads of a mebibyte.
func largePages(ctx context.Context, b *bench, p peer) (sample, error) {
	payload := make([]byte, largePayload)
	err := inParallel(ctx, 4, b.sizes.large, func(ctx context.Context, _ int, _ []byte) error {
		return p.enqueue(ctx, topic, job{payload: payload, in: anyDelay()})
	})
	if err != nil {
		return nil, err
	}
	q := delayq.Query{Topic: topic, State: delayq.StateScheduled, Limit: pageJobs}
	return b.readPages(ctx, p, b.sizes.pages, q, func(*delayq.Query, int) {})
}

// readPages measures n pages. Before each, next can change where it begins.
func (b *bench) readPages(ctx context.Context, p peer, n int, q delayq.Query, next func(q *delayq.Query, turn int)) (sample, error) {
	i := inspector(p)
	for range pagesInRow { // connections and scripts
		if _, err := i.Jobs(ctx, q); err != nil {
			return nil, err
		}
	}
	scripts, err := watchScripts(ctx, b.store.admin)
	if err != nil {
		return nil, err
	}
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	waits, jobs := make([]time.Duration, 0, n), 0
	for turn := range n {
		next(&q, turn)
		start := time.Now()
		page, err := i.Jobs(ctx, q)
		if err != nil {
			return nil, err
		}
		waits = append(waits, time.Since(start))
		jobs += len(page.Jobs)
		q.Cursor = page.Next
	}
	if jobs == 0 {
		return nil, errors.New("the pages have no jobs")
	}
	result, err := m.stop(ctx, jobs, time.Since(m.at))
	longest, slow, scriptErr := scripts()
	if err := errors.Join(err, scriptErr); err != nil {
		return nil, err
	}
	slices.Sort(waits)
	result[figPageP50] = milliseconds(percentile(waits, 50))
	result[figPageP99] = milliseconds(percentile(waits, 99))
	result[figSlowScripts] = float64(slow)
	result[figLongestScript] = milliseconds(longest)
	return result, nil
}

// filterAll measures a filter that looks at every job and admits none.
func filterAll(ctx context.Context, b *bench, p peer) (sample, error) {
	n := b.sizes.inspect[1]
	if err := fill(ctx, p, topic, 0, n, func(int) job { return job{in: anyDelay()} }); err != nil {
		return nil, err
	}
	scripts, err := watchScripts(ctx, b.store.admin)
	if err != nil {
		return nil, err
	}
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	q := delayq.Query{Topic: topic, State: delayq.StateScheduled, Payload: []byte("no payload has this"), Budget: 50_000}
	for info, err := range inspector(p).All(ctx, q) {
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("the filter has admitted job %q", info.ID)
	}
	result, err := m.stop(ctx, n, time.Since(m.at))
	longest, slow, scriptErr := scripts()
	if err := errors.Join(err, scriptErr); err != nil {
		return nil, err
	}
	result[figSlowScripts] = float64(slow)
	result[figLongestScript] = milliseconds(longest)
	return result, nil
}

// inspectRows are the rows about reading a topic with many jobs.
func inspectRows() []row {
	size := func(k int) func(sizes) int { return func(s sizes) int { return s.inspect[k] } }
	one := func(label string, state delayq.State, k int) side {
		return product{label, delayqProduct.open}.on(pages(state, size(k)))
	}
	quickly := []target{atMost(figPageP99, 1), atMost(figSlowScripts, 0)}
	all := []row{{
		id: "inspect/page/small", title: "a page of 100 scheduled jobs (of 10,000)",
		sides:   []side{delayqProduct.on(pages(delayq.StateScheduled, size(0)))},
		targets: quickly,
	}}
	for k, name := range []string{"middle", "large"} {
		all = append(all, row{
			id: "inspect/page/" + name, title: fmt.Sprintf("the same of %s jobs, against 10,000", number(float64(fullSizes().inspect[k+1]), 0)),
			sides:   []side{one(name, delayq.StateScheduled, k+1), one("small", delayq.StateScheduled, 0)},
			targets: append(slices.Clone(quickly), timesAtMost(figPageP99, 1.5)),
			rounds:  1, // storing the jobs takes long
		})
	}
	return append(all, row{
		id: "inspect/ready", title: "a page of 100 ready jobs (of a million), against 10,000",
		sides:   []side{one("middle", delayq.StateReady, 1), one("small", delayq.StateReady, 0)},
		targets: quickly,
		rounds:  1,
	}, row{
		id: "inspect/payload", title: "a page of 100 scheduled jobs with payloads of 1 MiB",
		sides:   []side{delayqProduct.on(largePages)},
		targets: quickly,
		rounds:  1,
	}, row{
		id: "inspect/filter", title: "a filter that reads a million jobs",
		sides:   []side{delayqProduct.on(filterAll)},
		targets: []target{atLeast(figRate, 200_000), atMost(figSlowScripts, 0)},
		rounds:  1,
	})
}
