package tests

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/script"
)

// A topicCopy is the content of the keys of a topic.
type topicCopy map[string]any

// copyTopic copies all keys of a topic, also receipts.
func copyTopic(b *queuetest.Bubble, topic string) topicCopy {
	all := make(topicCopy)
	ctx := context.Background()
	for _, key := range b.RDB.Keys(ctx, queuetest.Prefix+":{"+topic+"}:*").Val() {
		switch b.RDB.Type(ctx, key).Val() {
		case "hash":
			all[key] = b.RDB.HGetAll(ctx, key).Val()
		case "zset":
			all[key] = b.RDB.ZRangeWithScores(ctx, key, 0, -1).Val()
		case "list":
			all[key] = b.RDB.LRange(ctx, key, 0, -1).Val()
		default:
			all[key] = b.RDB.Get(ctx, key).Val()
		}
	}
	return all
}

// restore makes a topic what it was.
func (all topicCopy) restore(b *queuetest.Bubble, topic string) {
	ctx := b.Context()
	for _, key := range b.RDB.Keys(ctx, queuetest.Prefix+":{"+topic+"}:*").Val() {
		require.NoError(b, b.RDB.Del(ctx, key).Err())
	}
	for key, value := range all {
		var err error
		switch v := value.(type) {
		case map[string]string:
			err = b.RDB.HSet(ctx, key, v).Err()
		case []redis.Z:
			err = b.RDB.ZAdd(ctx, key, v...).Err()
		case []string:
			err = b.RDB.RPush(ctx, key, v).Err()
		default:
			err = b.RDB.Set(ctx, key, v, 0).Err()
		}
		require.NoError(b, err, key)
	}
}

// A hop is what Redis had of both topics after each call of a hand-over from a to b.
type hop struct {
	mu   sync.Mutex
	b    *queuetest.Bubble
	a, t map[string]topicCopy // by script; "run" is before the end of the run
	runs map[string]int       // of jobs of b, by payload
}

func (h *hop) keep(name string) {
	h.a[name], h.t[name] = copyTopic(h.b, "a"), copyTopic(h.b, "b")
}

func (h *hop) seen(e delayq.ScriptEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, sent := h.a[script.Replace.Name]
	switch e.Name {
	case script.HandOver.Name, script.ParcelPlan.Name, script.Replace.Name:
		if !sent && len(h.a) > 0 { // parcels are planned after they were listed
			h.keep(e.Name)
		}
	}
}

// work runs a job of a, and serve that of b.
func (h *hop) work(_ context.Context, job *delayq.Job) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.a) == 0 {
		h.keep("run")
	}
	return job.Then("b", job.ID, nil)
}

func (h *hop) serve(_ context.Context, job *delayq.Job) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.runs[job.ID]++
	return nil
}

// What a failover loses decides how often a job that is handed over runs: the table of the how-to.
func TestThenOverFailovers(t *testing.T) {
	for name, c := range map[string]struct {
		ended    bool   // the job of b had run before the failover
		a, b     string // up to which call the topics survive; empty: all
		want     int
		repeated bool // the run of a
	}{
		"the end of the run, with the job":             {a: "run", b: "run", want: 1, repeated: true},
		"the end of the run, and the job has run":      {ended: true, a: "run", want: 2, repeated: true},
		"the end of the run, and the job waits":        {a: "run", want: 1, repeated: true},
		"the begin of the delivery, and it has run":    {ended: true, a: script.HandOver.Name, want: 2},
		"the begin of the delivery, and it waits":      {a: script.HandOver.Name, want: 1},
		"that it was delivered":                        {ended: true, a: script.ParcelPlan.Name, want: 1},
		"the job in its topic, while it is stored":     {a: script.ParcelPlan.Name, b: script.ParcelPlan.Name, want: 1},
		"the job in its topic, and the end of its run": {a: script.Replace.Name, b: script.HandOver.Name, want: 1},
		"the job in its topic, later":                  {b: script.ParcelPlan.Name, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				h := &hop{b: b, a: map[string]topicCopy{}, t: map[string]topicCopy{}, runs: map[string]int{}}
				s := b.Serve("a", h.work, delayq.Hooks(queuetest.OnScript(h.seen)), delayq.Lease(2*time.Second))
				var next *queuetest.Running
				if c.ended {
					next = b.Serve("b", h.serve)
				}
				b.Enqueue("a", "1")
				b.Pass(5 * time.Second)
				require.NoError(b, s.Stop())
				if next != nil {
					require.NoError(b, next.Stop())
				}
				noParcels(b)
				for topic, from := range map[string]map[string]topicCopy{"a": h.a, "b": h.t} {
					if until := map[string]string{"a": c.a, "b": c.b}[topic]; until != "" {
						require.Contains(b, from, until)
						from[until].restore(b, topic)
					}
				}
				again := 0
				b.Serve("a", func(ctx context.Context, job *delayq.Job) error { again++; return h.work(ctx, job) })
				b.Serve("b", h.serve)
				b.Pass(time.Minute)
				require.Equal(b, c.want, h.runs["1"])
				require.Equal(b, c.repeated, again > 0)
				noParcels(b)
			})
		})
	}
}
