package web

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/delayq/delayq"
)

// latenessJobs is how many done jobs the lateness of a topic is computed from at most.
const latenessJobs = 500

// A lateness is how late done jobs of a topic started, in seconds.
type lateness struct {
	Jobs  int       `json:"jobs"`  // that it is computed from
	Since time.Time `json:"since"` // the start of the earliest of them
	P50   float64   `json:"p50_seconds"`
	P99   float64   `json:"p99_seconds"`
	Max   float64   `json:"max_seconds"`
}

// Half and Most return the lateness that half of the jobs, and 99 % of them, did not exceed.
func (l *lateness) Half() time.Duration { return seconds(l.P50) }
func (l *lateness) Most() time.Duration { return seconds(l.P99) }

func seconds(n float64) time.Duration {
	return time.Duration(math.Round(n*1e3)) * time.Millisecond // as exact as Redis's clock
}

// lateness computes the lateness of a topic from the done jobs that are kept longest. It is nil if
// there are none: Redis holds the start of a run only if the job has a Retention.
func (h *Handler) lateness(ctx context.Context, topic string) (*lateness, error) {
	return read(h, ctx, "lateness\x00"+topic, func(ctx context.Context) (*lateness, error) {
		page, err := h.insp.Jobs(ctx, delayq.Query{
			Topic: topic, State: delayq.StateDone, Latest: true, Limit: latenessJobs, Budget: latenessJobs,
		})
		if err != nil {
			return nil, err
		}
		return latenessOf(page.Jobs), nil
	})
}

func latenessOf(jobs []*delayq.JobInfo) *lateness {
	l := &lateness{}
	var late []float64
	for _, j := range jobs {
		if j.StartedAt.IsZero() || j.Due.IsZero() { // its record was not read
			continue
		}
		late = append(late, max(j.StartedAt.Sub(j.Due).Seconds(), 0))
		if l.Since.IsZero() || j.StartedAt.Before(l.Since) {
			l.Since = utc(j.StartedAt)
		}
	}
	if len(late) == 0 {
		return nil
	}
	slices.Sort(late)
	rank := func(percent int) float64 { return late[(len(late)*percent+99)/100-1] }
	l.Jobs, l.P50, l.P99, l.Max = len(late), rank(50), rank(99), rank(100)
	return l
}
