package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// A burstJob is what the job of an ID must be like.
type burstJob struct {
	state   delayq.State
	payload string
	due     time.Time
	first   time.Time // of its burst; zero: none
	tries   int
	snoozes int
	next    *burstJob // its successor
	held    hand.Held
}

// A burstModel is what a topic of few IDs must be like, by a clock that also jumps back.
type burstModel struct {
	b    *queuetest.Bubble
	h    *hand.Hand
	now  time.Time
	jobs map[string]*burstJob
	sent int
}

// burst returns when a job is due that a call puts off, and since when.
func (m *burstModel) burst(first time.Time, wait, longest time.Duration) (due, since time.Time) {
	if first.IsZero() || first.After(m.now) {
		first = m.now
	}
	due = m.now.Add(wait)
	if last := first.Add(longest); due.After(last) {
		due = last
	}
	if due.Before(m.now) {
		due = m.now
	}
	return due, first
}

// call makes the call that the table is about, and returns when the job is to be due.
func (m *burstModel) call(id, payload string, wait, longest time.Duration) time.Time {
	latest := longest == 0
	fresh := &burstJob{state: delayq.StateScheduled, payload: payload, due: m.now.Add(wait)}
	if !latest {
		fresh.due, fresh.first = m.burst(time.Time{}, wait, longest)
	}
	j := m.jobs[id]
	switch {
	case j == nil || j.state == delayq.StateDead:
		m.jobs[id] = fresh
		return fresh.due
	case j.state == delayq.StateRunning:
		if n := j.next; n != nil {
			if latest {
				fresh.due = n.due
			} else {
				fresh.due, fresh.first = m.burst(n.first, wait, longest)
			}
		}
		if fresh.due.Before(m.now) {
			fresh.due = m.now
		}
		j.next = fresh
		return fresh.due
	}
	first := j.first
	if first.IsZero() && j.next != nil {
		first = j.next.first
	}
	j.payload, j.next, j.first = payload, nil, time.Time{}
	due := j.due
	if !latest {
		due, j.first = m.burst(first, wait, longest)
		if j.state == delayq.StateScheduled && (j.tries > 0 || j.snoozes > 0) && j.due.After(due) {
			due = j.due
		}
	}
	if due.Before(m.now) || j.state == delayq.StateReady {
		due = m.now
	}
	if !due.After(m.now) {
		j.state = delayq.StateReady
	}
	j.due = due
	return due
}

// end ends the run of a job for good.
func (m *burstModel) end(id string) {
	j := m.jobs[id]
	delete(m.jobs, id)
	if n := j.next; n != nil {
		m.jobs[id] = n
		if n.state = delayq.StateScheduled; !n.due.After(m.now) {
			n.state, n.due = delayq.StateReady, m.now
		}
	}
}

// again puts a running job back.
func (m *burstModel) again(id string, delay time.Duration) {
	j := m.jobs[id]
	j.state, j.due, j.first = delayq.StateScheduled, m.now.Add(delay), time.Time{}
	if n := j.next; n != nil {
		j.payload, j.first, j.next = n.payload, n.first, nil
		if n.due.After(j.due) {
			j.due = n.due
		}
	}
}

// promote promotes what is due.
func (m *burstModel) promote() {
	m.h.Promote()
	for _, j := range m.jobs {
		if j.state == delayq.StateScheduled && !j.due.After(m.now) {
			j.state = delayq.StateReady
		}
	}
}

// settle ends the run of a job in a random way.
func (m *burstModel) settle(id string, j *burstJob, way int) {
	held := j.held
	switch way {
	case 0:
		require.Equal(m.b, "o", m.h.Ack(held))
		m.end(id)
	case 1:
		j.tries++
		require.Equal(m.b, "o", m.h.Retry(time.Minute, held))
		m.again(id, time.Minute)
	case 2:
		j.snoozes++
		require.Equal(m.b, "o", m.h.Snooze(time.Second, held))
		m.again(id, time.Second)
	case 3:
		require.Equal(m.b, "o", m.h.Return(held))
		j.state = delayq.StateReady
	case 4:
		require.Equal(m.b, "o", m.h.Bury(held))
		if j.next == nil {
			j.state = delayq.StateDead
			j.tries++
		} else {
			m.end(id)
		}
	}
}

// step does something at random.
func (m *burstModel) step(random *rand.Rand) {
	id := string(rune('a' + random.IntN(3)))
	j := m.jobs[id]
	switch random.IntN(8) {
	case 0, 1, 2:
		m.sent++
		payload := fmt.Sprint(m.sent)
		wait, longest := time.Duration(1+random.IntN(20))*time.Second, time.Duration(0)
		opts := []delayq.JobOption{delayq.Latest(), delayq.ProcessIn(wait)}
		if random.IntN(3) > 0 {
			longest = wait + time.Duration(random.IntN(60))*time.Second
			opts = []delayq.JobOption{delayq.Debounce(wait, longest)}
		}
		if random.IntN(3) == 0 {
			opts = append(opts, delayq.Key("k"))
		}
		due := m.call(id, payload, wait, longest)
		job, err := m.b.Client.Enqueue(m.b.Context(), "t", id, []byte(payload), opts...)
		require.NoError(m.b, err)
		require.True(m.b, due.Equal(job.Due), "%s: %v and not %v", id, job.Due.Sub(m.now), due.Sub(m.now))
	case 3:
		if random.IntN(3) > 0 {
			return
		}
		was, err := m.b.Client.Dequeue(m.b.Context(), "t", id)
		if j == nil {
			require.ErrorIs(m.b, err, delayq.ErrNotFound)
			return
		}
		require.Equal(m.b, j.state, was)
		delete(m.jobs, id)
	case 4:
		m.promote()
		for _, held := range m.h.Take(3, time.Hour) {
			require.Equal(m.b, delayq.StateReady, m.jobs[held.ID].state, held.ID)
			m.jobs[held.ID].state, m.jobs[held.ID].held = delayq.StateRunning, held
		}
	case 5:
		if j != nil && j.state == delayq.StateRunning {
			m.settle(id, j, random.IntN(5))
		}
	default:
		m.now = m.now.Add(time.Duration(random.IntN(15_000)) * time.Millisecond)
		if random.IntN(20) == 0 {
			m.now = m.now.Add(-time.Duration(random.IntN(40_000)) * time.Millisecond)
		}
		m.b.Redis.SetTime(m.now)
	}
}

// check compares what is in Redis with the model.
func (m *burstModel) check() {
	for _, id := range []string{"a", "b", "c"} {
		info, err := m.b.Client.Get(m.b.Context(), "t", id)
		j := m.jobs[id]
		if j == nil {
			require.ErrorIs(m.b, err, delayq.ErrNotFound, id)
			continue
		}
		require.NoError(m.b, err, id)
		require.Equal(m.b, j.state, info.State, id)
		require.Equal(m.b, j.payload, string(info.Payload), id)
		require.Equal(m.b, j.snoozes, info.Snoozes, id)
		if j.state != delayq.StateDead {
			require.Equal(m.b, j.tries+1, info.Attempt, id)
		}
		if j.state == delayq.StateScheduled {
			require.True(m.b, j.due.Equal(info.Due), "%s: %v and not %v", id, info.Due.Sub(m.now), j.due.Sub(m.now))
		}
		require.Equal(m.b, j.next != nil, m.b.RDB.HExists(m.b.Context(), queuetest.Prefix+":{t}:all:next", id).Val(), id)
	}
}

// Random calls with Debounce and Latest about few IDs, with runs that end in all ways and a clock
// that jumps: each job is as the model says.
func TestBurstsAgainstAModel(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				now := time.Now().Truncate(time.Millisecond)
				b.Redis.SetTime(now)
				m := &burstModel{b: b, h: hand.New(b.T, b.RDB, queuetest.Prefix, "t"), now: now, jobs: map[string]*burstJob{}}
				random := rand.New(rand.NewPCG(seed, 2))
				for range redistest.Size(2000) {
					m.step(random)
					m.check()
				}
				found, err := b.Inspector.Check(b.Context(), "t")
				require.NoError(b, err)
				require.Empty(b, found.Findings)
			})
		})
	}
}

// Bursts of calls with silence between them, at a server whose handler takes some time and fails
// now and then: each burst is followed by one successful run, with the last payload, once wait has
// passed.
func TestOneRunAfterSilence(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				random := rand.New(rand.NewPCG(seed, 3))
				const wait, longest = 5 * time.Second, time.Minute
				var mu sync.Mutex
				chance := rand.New(rand.NewPCG(seed, 4)) // of handlers
				var done []string
				b.Serve("t", func(_ context.Context, job *delayq.Job) error {
					mu.Lock()
					takes, fails := time.Duration(chance.IntN(3000))*time.Millisecond, chance.IntN(4) == 0
					mu.Unlock()
					time.Sleep(takes)
					if fails {
						return delayq.RetryIn(time.Second, errors.New("now and then"))
					}
					mu.Lock()
					defer mu.Unlock()
					done = append(done, string(job.Payload))
					return nil
				})
				var want []string
				for burst := range 12 {
					var last string
					for call := range 1 + random.IntN(8) {
						last = fmt.Sprintf("%d.%d", burst, call)
						_, err := b.Client.Enqueue(b.Context(), "t", "x", []byte(last), delayq.Debounce(wait, longest))
						require.NoError(b, err)
						b.Pass(time.Duration(random.IntN(4900)) * time.Millisecond)
					}
					b.Pass(time.Minute)
					want = append(want, last)
				}
				mu.Lock()
				defer mu.Unlock()
				require.Equal(b, want, done)
			})
		})
	}
}

// Calls without an end: the job runs once per longest, however long its handler takes, and each
// time with the payload of the last call before it was due.
func TestOneRunPerLongestUnderEndlessCalls(t *testing.T) {
	for name, takes := range map[string]time.Duration{"at once": 0, "7 s": 7 * time.Second} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var mu sync.Mutex
				var starts []time.Duration
				var running atomic.Int64
				b.Serve("t", func(context.Context, *delayq.Job) error {
					mu.Lock()
					starts = append(starts, b.At())
					mu.Unlock()
					require.EqualValues(b, 1, running.Add(1), "never two at once")
					time.Sleep(takes)
					running.Add(-1)
					return nil
				})
				for range 305 {
					_, err := b.Client.Enqueue(b.Context(), "t", "x", nil, delayq.Debounce(5*time.Second, time.Minute))
					require.NoError(b, err)
					b.Pass(time.Second)
				}
				b.Pass(time.Minute)
				mu.Lock()
				defer mu.Unlock()
				require.Len(b, starts, 6, "and one after the silence")
				for n := 1; n < 5; n++ {
					require.WithinRange(b, b.Began.Add(starts[n]-starts[n-1]), b.Began.Add(time.Minute), b.Began.Add(time.Minute+time.Second))
				}
			})
		})
	}
}
