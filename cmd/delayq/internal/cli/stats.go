package cli

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

const (
	schemaStat  = "delayq.stat/1"
	schemaStats = "delayq.stats/1"
)

// A ratesRecord has numbers of jobs per second.
type ratesRecord struct {
	Enqueued float64 `json:"enqueued"`
	Finished float64 `json:"finished"` // runs that completed their job
	Failed   float64 `json:"failed"`   // runs that did not
}

// ratesBetween returns what has happened from one sample to the next.
func ratesBetween(before, after *topicRecord) *ratesRecord {
	elapsed := time.Time(after.At).Sub(time.Time(before.At)).Seconds()
	if elapsed <= 0 {
		return nil
	}
	rate := func(names ...delayq.Counter) float64 {
		n := int64(0)
		for _, name := range names {
			n += after.Counters[name] - before.Counters[name]
		}
		return float64(int64(float64(max(0, n))/elapsed*10+0.5)) / 10
	}
	return &ratesRecord{
		Enqueued: rate(delayq.CounterEnqueued, delayq.CounterFired, delayq.CounterAgain), Finished: rate(delayq.CounterAcked, delayq.CounterAgain),
		Failed: rate(delayq.CounterRetried, delayq.CounterBuried, delayq.CounterReclaimed),
	}
}

func (a *app) statsCommand() *cobra.Command {
	var every time.Duration
	var samples int
	cmd := &cobra.Command{
		Use:   "stats [TOPIC…]",
		Short: "Sample the numbers of topics, once or again and again",
		Long: `Sample the numbers and counters of topics. With --every, sample again and again until
the command is interrupted; then rows have rates per second too. Use -o jsonl for
programs.`,
		Example: `  delayq stats --every 2s -o jsonl
  delayq stats mail:welcome --every 10s --samples 6`,
		Args:              counted(0, -1, "topics"),
		ValidArgsFunction: a.completeArgs(a.topicNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case cmd.Flags().Changed("every") && every < 100*time.Millisecond:
				return usage("--every %v: must be at least 100ms", every)
			case every > 0 && a.format == formatJSON:
				return usage("--every: -o json is one document; use -o jsonl")
			case samples < 0:
				return usage("--samples %d: must be at least 1, or 0 for no end", samples)
			}
			return a.sample(cmd.Context(), args, every, samples)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().Var(&duration{&every}, "every", "time between two samples; without it there is one sample")
	cmd.Flags().IntVar(&samples, "samples", 0, "end after this many samples; 0: no end")
	return cmd
}

func (a *app) sample(ctx context.Context, topics []string, every time.Duration, samples int) error {
	perSecond := func(rate func(*ratesRecord) float64) func(*topicRecord) string {
		return func(r *topicRecord) string {
			if r.Rates == nil {
				return "-"
			}
			return strconv.FormatFloat(rate(r.Rates), 'f', -1, 64)
		}
	}
	p, err := lists(a, view[*topicRecord]{schemaStat, schemaStats, "stats", []column[*topicRecord]{
		{head: "AT", cell: func(r *topicRecord) string { return a.when(time.Time(r.At)) }},
		{head: "TOPIC", cell: func(r *topicRecord) string { return r.Topic }},
		{head: "SCHEDULED", cell: func(r *topicRecord) string { return number(r.Scheduled) }, right: true},
		{head: "READY", cell: func(r *topicRecord) string { return number(r.Ready) }, right: true},
		{head: "RUNNING", cell: func(r *topicRecord) string { return number(r.Running) }, right: true},
		{head: "RETRYING", cell: func(r *topicRecord) string { return number(r.Retrying) }, right: true, wide: true},
		{head: "DEAD", cell: func(r *topicRecord) string { return number(r.Dead) }, right: true},
		{head: "OVERDUE", cell: func(r *topicRecord) string { return number(r.Overdue) }, right: true},
		{head: "OLDEST", cell: oldest, right: true},
		{head: "IN/S", cell: perSecond(func(r *ratesRecord) float64 { return r.Enqueued }), right: true},
		{head: "OUT/S", cell: perSecond(func(r *ratesRecord) float64 { return r.Finished }), right: true},
		{head: "FAILED/S", cell: perSecond(func(r *ratesRecord) float64 { return r.Failed }), right: true},
		{head: "HANDED OVER", cell: parcelsCell, wide: true},
		{head: "LIMITS", cell: limitsCell, wide: true},
		{head: "HELD UNTIL", cell: func(r *topicRecord) string {
			if r.Hold == nil {
				return "-"
			}
			return a.when(time.Time(r.Hold.Until))
		}, wide: true},
	}, func(r *topicRecord) string { return r.Topic }, nil})
	if err != nil {
		return err
	}
	before := map[string]*topicRecord{}
	for n := 1; ; n++ {
		list, err := a.stats(ctx, topics)
		if err != nil {
			return err
		}
		for _, r := range list {
			if old := before[r.Topic]; old != nil {
				r.Rates = ratesBetween(old, r)
			}
			before[r.Topic] = r
			if err := p.row(r); err != nil {
				return err
			}
		}
		if every == 0 || n == samples {
			return p.end(nil)
		}
		if err := p.flush(); err != nil {
			return err
		}
		if err := wait(ctx, every); err != nil {
			return err
		}
	}
}

// wait returns after d, or when ctx is done.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
