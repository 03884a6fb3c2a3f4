package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/delayq/delayq"
)

// flowEnd is the topic of the last steps of flows. Their other steps are jobs of topic.
const flowEnd = topic + "-last"

// flowStarters is how many goroutines start flows.
const flowStarters = 16

// flowing measures how fast flows of that many steps run, from the start of the first to the end of
// the last. The figures are those of a job: a step, or a last one.
func flowing(label string, steps int) side {
	return product{label, delayqProduct.open}.on(func(ctx context.Context, b *bench, p peer) (_ sample, err error) {
		q, t := p.(*delayqPeer), newTally(flowsOf(b.sizes, steps)*(steps+1))
		if err := b.warmUp(ctx, p, callers); err != nil {
			return nil, err
		}
		note := func(_ context.Context, job *delayq.Job) error {
			t.note(payloadIndex(job.Payload))
			return nil
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		stop := q.serving(ctx, callers, map[string]delayq.HandlerFunc{topic: note, flowEnd: note})
		defer func() { err = errors.Join(err, stop()) }()
		if err := q.startFlows(ctx, t.n, steps); err != nil {
			return nil, err
		}
		result, err := b.finish(ctx, p, m, t, m.at)
		return result, errors.Join(err, settled(ctx, p, flowEnd))
	})
}

// flowsOf is how many flows a row has.
func flowsOf(s sizes, steps int) int { return max(s.stepped/(steps+1), 1) }

// startFlows starts flows that have n jobs together.
func (p *delayqPeer) startFlows(ctx context.Context, n, steps int) error {
	return inParallel(ctx, flowStarters, n/(steps+1), func(ctx context.Context, i int, _ []byte) error {
		first := i * (steps + 1)
		payload := func(i int) []byte {
			text := make([]byte, payloadSize)
			fillPayload(text, first+i, time.Time{})
			return text
		}
		f := delayq.NewFlow(flowEnd, "flow-"+strconv.Itoa(i), payload(0)).Deadline(time.Hour)
		for s := range steps {
			f.Add(topic, payload(s+1))
		}
		if _, err := p.client.Start(ctx, f); err != nil {
			return fmt.Errorf("start flow %d: %w", i, err)
		}
		return nil
	})
}

// plainJobs is flowing for as many jobs that no flow holds together.
func plainJobs(label string, steps int) side {
	return product{label, delayqProduct.open}.on(func(ctx context.Context, b *bench, p peer) (_ sample, err error) {
		q, t := p.(*delayqPeer), newTally(flowsOf(b.sizes, steps)*(steps+1))
		if err := b.warmUp(ctx, p, callers); err != nil {
			return nil, err
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		stop := q.handling(ctx, callers, func(_ context.Context, job *delayq.Job) error {
			t.note(payloadIndex(job.Payload))
			return nil
		})
		defer func() { err = errors.Join(err, stop()) }()
		if err := fill(ctx, p, topic, 0, t.n, ready); err != nil {
			return nil, err
		}
		return b.finish(ctx, p, m, t, m.at)
	})
}

// bullmqFlowing is flowing with BullMQ's FlowProducer, whose parents are the last steps.
func bullmqFlowing(steps int) side {
	return bullmqSide(func(ctx context.Context, b *bench, c *bullmqChild) (sample, error) {
		if err := c.warmWork(ctx, b, payloadSize); err != nil {
			return nil, err
		}
		flows := flowsOf(b.sizes, steps)
		work := request{Do: "work", Topics: []string{flowEnd, topic}, N: flows, Concurrency: bullmqConcurrency}
		if _, err := c.do(work); err != nil {
			return nil, err
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		start := request{Do: "flows", Topics: work.Topics, Callers: flowStarters, N: flows, Steps: steps, Size: payloadSize}
		if _, err := c.do(start); err != nil {
			return nil, err
		}
		result, err := c.ran(ctx, m, flows*(steps+1), m.at)
		return result, errors.Join(err, c.settled(ctx, flowEnd), c.each(request{Do: "stop"}))
	})
}

// flowRows are the rows about flows.
func flowRows() []row {
	var list []row
	for _, steps := range []int{10, 100, 1000} {
		list = append(list, row{
			id: fmt.Sprintf("flow/%d", steps), title: fmt.Sprintf("start and work off flows of %d steps and a last one that waits for them", steps),
			sides:   []side{flowing("delayq", steps), bullmqFlowing(steps), plainJobs("jobs alone", steps)},
			targets: []target{timesAtMost(figCPU, 1)},
		})
	}
	return list
}
