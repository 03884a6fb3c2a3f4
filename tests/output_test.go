package tests

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// everyByte is an output as long as is allowed, of bytes of any kind.
var everyByte = bytes.Repeat(append([]byte(`}1:{"output":9`), 0, 0xff, '\n', '"', '\\', 0x80), delayq.MaxOutput)[:delayq.MaxOutput]

// The output of a run stays with a done job byte for byte, whatever the sizes of output and
// payload. Jobs with and without one can end in the same call, and lists are as without it.
func TestOutputStaysWithADoneJob(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		outputs := map[string][]byte{"none": nil, "empty": {}, "one": {'}'}, "digits": []byte("12:34"), "whole": everyByte}
		payloads := map[string][]byte{
			"no": nil, "small": []byte("x"), "head": make([]byte, 1000), "page": make([]byte, 15<<10), "large": make([]byte, 1<<20),
		}
		ended := make(chan string, 100)
		queuetest.Serve(t, f.RDB, f.Prefix, "topic", func(_ context.Context, job *delayq.Job) error {
			name, _, _ := strings.Cut(job.ID, "/")
			return job.SetOutput(outputs[name])
		}, delayq.Concurrency(50), delayq.Hooks(endedHook(func(e delayq.RunEvent) { ended <- e.ID })))
		fresh := []delayq.NewJob{}
		for name := range outputs {
			for size, payload := range payloads {
				fresh = append(fresh, delayq.NewJob{Topic: "topic", ID: name + "/" + size, Payload: payload, Options: []delayq.JobOption{delayq.Retention(time.Hour)}})
			}
		}
		results, err := f.Client.EnqueueBatch(t.Context(), fresh)
		require.NoError(t, err)
		for i := range results {
			require.NoError(t, results[i].Err)
			queuetest.Receive(t, ended)
		}
		for _, job := range fresh {
			name, _, _ := strings.Cut(job.ID, "/")
			info := f.Get(job.ID)
			require.Equal(t, delayq.StateDone, info.State)
			require.Equal(t, 1, info.Attempt)
			require.NoError(t, info.Undecodable)
			require.True(t, bytes.Equal(job.Payload, info.Payload), job.ID)
			require.True(t, bytes.Equal(outputs[name], info.Output()), "%s: %q", job.ID, info.Output())
			require.ErrorIs(t, info.SetOutput([]byte("x")), delayq.ErrInvalid, "it is over")
		}
		listed := 0
		for info, err := range f.Inspector.All(t.Context(), delayq.Query{Topic: "topic", State: delayq.StateDone}) {
			require.NoError(t, err)
			require.NoError(t, info.Undecodable, info.ID)
			require.Empty(t, info.Output())
			if !info.Partial {
				require.Equal(t, len(payloads[info.ID[strings.IndexByte(info.ID, '/')+1:]]), info.PayloadSize, info.ID)
				require.False(t, info.FinishedAt.IsZero())
			}
			listed++
		}
		require.Equal(t, len(fresh), listed)
		found, err := f.Inspector.Jobs(t.Context(), delayq.Query{Topic: "topic", State: delayq.StateDone, Payload: []byte(`{"output"`)})
		require.NoError(t, err)
		require.Empty(t, found.Jobs, "an output is no payload")
		report, err := f.Inspector.Check(t.Context(), "topic")
		require.NoError(t, err)
		require.Empty(t, report.Findings)
	})
}

// endedHook is a hook for the end of every run.
type endedHook func(delayq.RunEvent)

func (f endedHook) Ended(e delayq.RunEvent) { f(e) }

// The history of a schedule has the end of the output of each run, also of one that failed, and of
// one that ends with Again.
func TestOutputInTheHistoryOfASchedule(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ends := map[int]error{1: nil, 2: queuetest.ErrTest, 3: delayq.Permanent(queuetest.ErrTest), 4: delayq.Again(nil, delayq.ProcessIn(time.Hour)), 5: nil}
		runs := 0
		var seen [][]byte
		b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			if runs++; runs < 5 {
				require.NoError(b, job.SetOutput(fmt.Appendf(nil, "output %d", runs)))
			} else {
				require.NoError(b, job.SetOutput(everyByte))
			}
			return ends[runs]
		}, delayq.Hooks(endedHook(func(e delayq.RunEvent) { seen = append(seen, e.Output) })))
		b.AddSchedule("s", delayq.Every(10*time.Second), delayq.MaxRuns(5), delayq.OverlapAllow, delayq.Backoff(time.Hour, time.Hour))
		b.Pass(time.Minute)
		list, err := b.Inspector.Runs(b.Context(), "t", "s", 10)
		require.NoError(b, err)
		require.Len(b, list, 5)
		require.Equal(b, everyByte[delayq.MaxOutput-1<<10:], list[0].Output)
		require.Equal(b, delayq.MaxOutput, list[0].OutputSize)
		require.Equal(b, list[0], *b.ScheduleInfo("s").LastRun)
		for i, outcome := range []delayq.Outcome{delayq.OutcomeAgain, delayq.OutcomeBuried, delayq.OutcomeRetried, delayq.OutcomeAcked} {
			require.Equal(b, outcome, list[1+i].Outcome)
			require.Equal(b, fmt.Sprintf("output %d", 4-i), string(list[1+i].Output))
			require.Equal(b, len("output 1"), list[1+i].OutputSize)
		}
		require.Equal(b, everyByte, seen[4], "hooks have all of it")
	})
}

// The last output counts, copies of a job share it, each run begins without one, and it is dropped
// if nothing is kept.
func TestSetOutput(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var kept *delayq.Job
		var before []string
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			before = append(before, string(job.Output()))
			own := []byte("first")
			require.NoError(b, job.SetOutput(own))
			copy(own, "fifth")
			require.Equal(b, "first", string(job.Output()), "it is a copy")
			err := job.SetOutput(make([]byte, delayq.MaxOutput+1))
			require.ErrorIs(b, err, delayq.ErrInvalid)
			require.EqualError(b, err, `set output topic "a" job "`+job.ID+`": delayq: invalid: output of 65537 bytes, at most 65536 are allowed`)
			require.Equal(b, "first", string(job.Output()))
			if job.Attempt == 1 {
				return queuetest.ErrTest
			}
			second := *job
			require.NoError(b, second.SetOutput([]byte("second")))
			kept = job
			return nil
		}, delayq.Concurrency(1))
		stored := b.Enqueue("a", "x", delayq.Retention(time.Hour), delayq.Backoff(time.Second, time.Second))
		b.Enqueue("a", "dropped", delayq.Backoff(time.Second, time.Second))
		b.Pass(10 * time.Second)
		require.Equal(b, []string{"", "", "", ""}, before)
		info := b.Get("a", "x")
		require.Equal(b, "second", string(info.Output()))
		require.ErrorContains(b, kept.SetOutput([]byte("third")), "the handler has returned")
		require.Equal(b, "second", string(kept.Output()))
		require.Equal(b, "second", string(b.Get("a", "x").Output()))
		require.Empty(b, b.State("a", "dropped"))
		require.ErrorContains(b, stored.SetOutput(nil), "not that of a handler")
		require.Empty(b, stored.Output())
		require.ErrorIs(b, (*delayq.Job)(nil).SetOutput(nil), delayq.ErrInvalid)
		require.Empty(b, (*delayq.Job)(nil).Output())
		info.Output()[0] = 'S'
		require.Equal(b, "second", string(info.Output()))
	})
}

// Each job of a batch has its own output.
func TestOutputsOfABatch(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		for i := range 3 {
			b.Enqueue("a", fmt.Sprint(i), delayq.Retention(time.Hour))
		}
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandleBatch("a", func(_ context.Context, jobs []*delayq.Job) error {
				for _, job := range jobs {
					if job.ID != "1" {
						require.NoError(b, job.SetOutput([]byte("of "+job.ID)))
					}
				}
				return nil
			}))
		})
		b.Pass(time.Second)
		for i, want := range []string{"of 0", "", "of 2"} {
			require.Equal(b, want, string(b.Get("a", fmt.Sprint(i)).Output()))
		}
	})
}

// Large outputs are settled in calls of about 1 MiB beyond the first, whether they are kept or not.
func TestLargeOutputsAreSettledInSmallCalls(t *testing.T) {
	for name, opts := range map[string][]delayq.JobOption{"kept": {delayq.Retention(time.Hour)}, "not kept": nil} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				const jobs = 60
				var calls queuetest.HookLog
				release := make(chan struct{})
				b.Serve("a", func(_ context.Context, job *delayq.Job) error {
					<-release
					return job.SetOutput(everyByte)
				}, delayq.Hooks(&calls), delayq.Concurrency(jobs))
				for i := range jobs {
					b.Enqueue("a", fmt.Sprint(i), opts...)
				}
				b.Pass(0)
				close(release)
				b.Pass(time.Second)
				settled := 0
				for _, e := range calls.Scripts {
					if e.Name == "ack" {
						settled += e.Jobs
						require.LessOrEqual(b, e.Jobs, 1+(1<<20)/delayq.MaxOutput)
					}
				}
				require.Equal(b, jobs, settled)
				if opts != nil {
					require.Equal(b, everyByte, b.Get("a", "0").Output())
				}
			})
		})
	}
}

// Those who wait for a job get the whole output of the run that has completed it, also if nothing
// is kept of the job, in a batch, and if a successor follows. A dead job with a successor leaves
// its last error.
func TestOutputIsTold(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const wanted = `{"output":65536,"attempt":1,`
		await := func(topic, id string, opts ...delayq.JobOption) (outcome string) {
			job := b.Enqueue(topic, id, opts...)
			entry := fmt.Sprintf("%s%013dnobody", job.Nonce(), time.Now().UnixMilli())
			key := notesKey(topic)
			require.NoError(b, b.RDB.HSet(b.Context(), key, "w"+id, fmt.Sprintf("%d:%s", len(entry), entry)).Err())
			b.Pass(time.Second)
			return b.RDB.HGet(b.Context(), key, "e"+job.Nonce()).Val()
		}
		handle := func(_ context.Context, job *delayq.Job) error {
			if err := job.SetOutput(everyByte); err != nil {
				return err
			}
			if strings.HasPrefix(job.ID, "successor") && len(job.Payload) > 0 {
				_, err := b.Client.Enqueue(b.Context(), job.Topic, job.ID, nil, delayq.Latest(), delayq.ProcessIn(time.Hour))
				require.NoError(b, err)
			}
			if strings.HasSuffix(job.ID, "dead") {
				return delayq.Permanent(queuetest.ErrTest)
			}
			return nil
		}
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("one", handle)
			require.NoError(b, s.HandleBatch("batch", func(ctx context.Context, jobs []*delayq.Job) error {
				require.Len(b, jobs, 1)
				return handle(ctx, jobs[0])
			}))
		})
		in := delayq.ProcessIn(time.Millisecond)
		for _, outcome := range []string{
			await("one", "not kept", in), await("one", "kept", in, delayq.Retention(time.Hour)), await("batch", "1", in), await("one", "successor", in),
		} {
			require.Contains(b, outcome, wanted)
			require.True(b, strings.HasSuffix(outcome, string(everyByte)))
			require.Equal(b, "o ", outcome[:2])
		}
		require.Equal(b, delayq.StateScheduled, b.State("one", "successor"))
		outcome := await("one", "successor dead", in)
		require.Equal(b, "d ", outcome[:2])
		require.Contains(b, outcome, queuetest.ErrTest.Error())
		require.NotContains(b, outcome, string(everyByte))
		require.Equal(b, delayq.StateScheduled, b.State("one", "successor dead"))
	})
}
