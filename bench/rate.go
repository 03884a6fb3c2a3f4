package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq"
)

// rateServers is how many servers share a rate, each with rateSlots handlers.
const rateServers, rateSlots = 2, 64

// rateLead is from the first start to where the share of a rate is measured
// from: what a bucket holds at the beginning has been used up.
const rateLead = time.Second

// rateJobs is how many ready jobs a rate cannot use up meanwhile, not even if
// the machine stalls for some seconds.
func rateJobs(s sizes, perSecond int) int {
	return perSecond * int((s.rateSpan+9*rateLead)/time.Second)
}

// startLog notes when handlers start.
type startLog struct {
	at    []atomic.Int64 // Unix µs
	count atomic.Int64
	first chan struct{} // closed by the first
}

// newStartLog has room for n starts. Later ones are counted only.
func newStartLog(n int) *startLog {
	return &startLog{at: make([]atomic.Int64, n), first: make(chan struct{})}
}

// note is a handler that does nothing else.
func (l *startLog) note(delivery) {
	i := int(l.count.Add(1)) - 1
	if i < len(l.at) {
		l.at[i].Store(time.Now().UnixMicro())
	}
	if i == 0 {
		close(l.first)
	}
}

// times are the starts so far, in order.
func (l *startLog) times() []time.Time {
	var times []time.Time
	for i := range min(int(l.count.Load()), len(l.at)) {
		if us := l.at[i].Load(); us != 0 { // it is being noted
			times = append(times, time.UnixMicro(us))
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}

// mostWithin is the largest number of the sorted times that lie in one window.
func mostWithin(times []time.Time, window time.Duration) (most int) {
	first := 0
	for i, t := range times {
		for t.Sub(times[first]) >= window {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// rated measures starts at a rate: what each costs Redis, how much of the rate
// is used, and the worst second. mean is how many starts a second the rate
// promises in the long run. The jobs have been stored. start begins to work
// them off; begun waits for the first start; starts are those so far.
func (b *bench) rated(ctx context.Context, mean int, begun func() error, starts func() ([]time.Time, error)) (sample, error) {
	if err := begun(); err != nil {
		return nil, err
	}
	if err := sleep(ctx, rateLead); err != nil {
		return nil, err
	}
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, b.sizes.rateSpan); err != nil {
		return nil, err
	}
	end := time.Now()
	all, err := starts()
	if err != nil {
		return nil, err
	}
	n := 0
	for _, t := range all {
		if !t.Before(m.at) && t.Before(end) {
			n++
		}
	}
	if n == 0 {
		return nil, fmt.Errorf("no job has started in %s", b.sizes.rateSpan)
	}
	result, err := m.stop(ctx, n, end.Sub(m.at))
	if err != nil {
		return nil, err
	}
	result[figShare] = 100 * result[figRate] / float64(mean)
	result[figRedis] = result[figRate] * result[figCPU] / 1e4
	result[figWindow] = float64(mostWithin(all, time.Second))
	return result, nil
}

// delayqRate is delayq at a rate.
func delayqRate(rate delayq.Rate, mean int) side {
	return delayqProduct.on(func(ctx context.Context, b *bench, p peer) (_ sample, err error) {
		if err := b.warmUp(ctx, p, rateSlots); err != nil {
			return nil, err
		}
		if err := p.(*delayqPeer).client.SetLimits(ctx, topic, delayq.Limits{Rate: rate}); err != nil {
			return nil, err
		}
		n := rateJobs(b.sizes, mean)
		if err := fill(ctx, p, topic, 0, n, ready); err != nil {
			return nil, err
		}
		log := newStartLog(n)
		stop, err := p.work(ctx, workload{topics: []topicWork{{topic, rateSlots, log.note}}, servers: rateServers})
		if err != nil {
			return nil, err
		}
		result, err := b.rated(ctx, mean, func() error {
			select {
			case <-log.first:
				return nil
			case <-time.After(patience):
				return fmt.Errorf("no job has started in %s", patience)
			case <-ctx.Done():
				return ctx.Err()
			}
		}, func() ([]time.Time, error) { return log.times(), nil })
		if stopErr := stop(); err == nil {
			err = stopErr
		}
		return result, err
	})
}

// bullmqRate is BullMQ at a rate, with its limiter.
func bullmqRate(perSecond int) side {
	return bullmqSide(func(ctx context.Context, b *bench, c *bullmqChild) (sample, error) {
		if err := c.warmWork(ctx, b, payloadSize); err != nil {
			return nil, err
		}
		n := 2 * rateJobs(b.sizes, perSecond) // it can start more than its rate says
		err := c.each(
			request{Do: "add", N: n, Size: payloadSize},
			request{
				Do: "work", Topics: []string{topic}, N: n, Workers: rateServers, Concurrency: rateSlots,
				Limiter: &limiter{perSecond, time.Second.Milliseconds()},
			},
		)
		if err != nil {
			return nil, err
		}
		return b.rated(ctx, perSecond, func() error {
			_, err := c.do(request{Do: "begun"})
			return err
		}, func() ([]time.Time, error) {
			seen, err := c.do(request{Do: "seen"})
			times := make([]time.Time, len(seen.Starts))
			for i, ms := range seen.Starts {
				times[i] = instantOf(ms)
			}
			slices.SortFunc(times, time.Time.Compare)
			return times, err
		})
	})
}

// rateRows are the rows with a rate of starts that two servers share. asynq has
// none.
func rateRows() []row {
	rows := []row{}
	for _, r := range []struct {
		id, title string
		rate      delayq.Rate
		mean      int
		cpu       float64
	}{
		{"rate/1000", "1,000 starts a second", delayq.Per(1000, time.Second), 1000, 60},
		{"rate/5000", "5,000 starts a second", delayq.Per(5000, time.Second), 5000, 45},
		{"rate/1000/burst1", "1,000 starts a second, burst 1", delayq.Per(1000, time.Second).Burst(1), 1000, 60},
		{"rate/1000/strict", "1,000 starts a second, strict", delayq.Per(1000, time.Second).Strict(), 900, 60},
	} {
		bound := float64(r.rate.Starts() + r.rate.MaxBurst())
		if r.rate.IsStrict() {
			bound = float64(r.rate.Starts())
		}
		rows = append(rows, row{
			id: r.id, title: r.title + ", 2 servers",
			sides:   []side{delayqRate(r.rate, r.mean), bullmqRate(r.rate.Starts())},
			targets: []target{atMost(figCPU, r.cpu), atLeast(figShare, 97), atMost(figWindow, bound)},
		})
	}
	return rows
}
