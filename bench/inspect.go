package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"

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

// nthPage is how a page in the middle of the ready jobs is read.
type nthPage func(ctx context.Context, p peer, page int) (jobs int, err error)

// delayqPage reads a page by its number.
func delayqPage(ctx context.Context, p peer, page int) (int, error) {
	q := delayq.Query{Topic: topic, State: delayq.StateReady, Limit: pageJobs, Offset: int64(page) * pageJobs}
	read, err := inspector(p).Jobs(ctx, q)
	if err != nil {
		return 0, err
	}
	return len(read.Jobs), nil
}

// asynqPage reads a page by its number.
func asynqPage(_ context.Context, p peer, page int) (int, error) {
	i := asynq.NewInspectorFromRedisClient(p.(*asynqPeer).rdb)
	read, err := i.ListPendingTasks(topic, asynq.PageSize(pageJobs), asynq.Page(page+1))
	return len(read), err
}

// middlePage measures how long it takes to read the page in the middle of the
// ready jobs.
func middlePage(read nthPage) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (sample, error) {
		n := b.sizes.inspect[1]
		if err := fill(ctx, p, topic, 0, n, ready); err != nil {
			return nil, err
		}
		middle := n / pageJobs / 2
		if _, err := read(ctx, p, 0); err != nil { // connections and scripts
			return nil, err
		}
		waits := make([]time.Duration, middlePages)
		for i := range waits {
			start := time.Now()
			jobs, err := read(ctx, p, middle)
			if err == nil && jobs != pageJobs {
				err = fmt.Errorf("a page of %d jobs instead of %d", jobs, pageJobs)
			}
			if err != nil {
				return nil, err
			}
			waits[i] = time.Since(start)
		}
		return pageSample(waits), nil
	}
}

// middlePages is how often a page in the middle is read.
const middlePages = 11

// pageSample has the figures of the times that pages took, which it sorts.
func pageSample(waits []time.Duration) sample {
	slices.Sort(waits)
	return sample{figPageP50: milliseconds(percentile(waits, 50)), figPageP99: milliseconds(percentile(waits, 99))}
}

// bullmqPage is middlePage.
func bullmqPage(_ context.Context, b *bench, c *bullmqChild) (sample, error) {
	n := b.sizes.inspect[1]
	err := c.each(request{Do: "add", N: n, Size: payloadSize}, request{Do: "page", N: pageJobs, Times: 1})
	if err != nil {
		return nil, err
	}
	got, err := c.do(request{Do: "page", From: n / 2, N: pageJobs, Times: middlePages})
	return pageSample(spansOf(got.Waits)), err
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
		id: "inspect/ready/middle", title: "the page in the middle of a million ready jobs",
		sides: []side{
			delayqProduct.on(middlePage(delayqPage)), asynqProduct.on(middlePage(asynqPage)), bullmqSide(bullmqPage),
		},
		targets: []target{atMost(figPageP50, 1)},
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
