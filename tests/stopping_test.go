package tests

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A stopRow is a row of the table in docs/howto/stopping.md.
type stopRow struct{ call, waits, second, endedBy, itself, explain string }

func stopRows(t *testing.T) (list []stopRow) {
	t.Helper()
	text, err := os.ReadFile("../docs/howto/stopping.md")
	require.NoError(t, err)
	for _, line := range regexp.MustCompile("(?m)^\\| `.*$").FindAllString(string(text), -1) {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		require.Len(t, cells, 6, line)
		list = append(list, stopRow{strings.Trim(cells[0], "`"), cells[1], cells[2], cells[3], cells[4], strings.Trim(cells[5], "`")})
	}
	return list
}

// A stopStage plays a row. Each case has a topic of its own, of one server.
type stopStage struct {
	*queuetest.Bubble
	row  stopRow
	last int // the last topic in use
	asks int

	mu   sync.Mutex
	ran  map[string]int // topic and ID, or topic and schedule → runs
	held map[string]bool
}

const stopTopics = 12

func newStopStage(b *queuetest.Bubble, row stopRow) *stopStage {
	s := &stopStage{Bubble: b, row: row, ran: map[string]int{}, held: map[string]bool{}}
	queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(server *delayq.Server) {
		for n := range stopTopics {
			require.NoError(b, server.HandlerFunc(fmt.Sprint("t", n), s.handle))
		}
	})
	b.Pass(time.Second)
	return s
}

// handle runs a job. The ID of one that holds has when that is, and for how long.
func (s *stopStage) handle(_ context.Context, job *delayq.Job) error {
	name := job.ID
	if job.Schedule != "" {
		name = job.Schedule
	}
	s.mu.Lock()
	s.ran[job.Topic+" "+name]++
	again := s.held[job.Topic+" "+name]
	s.held[job.Topic+" "+name] = true
	s.mu.Unlock()
	var after, d time.Duration
	if n, _ := fmt.Sscanf(strings.ReplaceAll(job.ID, "_", " "), "hold %d %d", &after, &d); n == 2 && !again {
		time.Sleep(after)
		if s.row.call == "return HoldKey" {
			return delayq.HoldKey(d)
		}
		return delayq.Hold(d)
	}
	if job.ID == "long" {
		time.Sleep(2 * time.Second)
	}
	return nil
}

func (s *stopStage) runs(topic, name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ran[topic+" "+name]
}

// topic returns one that no other case uses.
func (s *stopStage) topic() string {
	topic := fmt.Sprint("t", s.last)
	s.last++
	require.LessOrEqual(s, s.last, stopTopics)
	if s.row.waits == "the schedule" {
		require.NoError(s, s.Client.Schedule(s.Context(), topic, "s", delayq.Every(time.Second), nil))
	}
	return topic
}

// start makes the call of the row, for d if it has a time.
func (s *stopStage) start(topic, by string, d time.Duration) {
	s.Helper()
	ctx, err := s.Context(), error(nil)
	switch s.row.call {
	case "Client.Pause":
		err = s.Client.Pause(ctx, topic, delayq.Pause{By: by, For: d})
	case "Client.Hold":
		err = s.Client.Hold(ctx, topic, d, "")
	case "Client.PauseKey":
		err = s.Client.PauseKey(ctx, topic, "k")
	case "Client.HoldKey":
		err = s.Client.HoldKey(ctx, topic, "k", d)
	case "Client.PauseSchedule":
		err = s.Client.PauseSchedule(ctx, topic, "s")
	case "return Hold", "return HoldKey":
		s.hold(topic, 0, d)
		s.Pass(0)
	default:
		s.T.Fatalf("no call %q", s.row.call)
	}
	require.NoError(s, err)
}

// hold enqueues a job whose handler holds for d, after a time.
func (s *stopStage) hold(topic string, after, d time.Duration) {
	s.Enqueue(topic, fmt.Sprintf("hold_%d_%d", after, d), delayq.Key("k"))
}

// twice makes the call of the row twice, the second one a second later.
func (s *stopStage) twice(topic string, d, second time.Duration) {
	s.Helper()
	if strings.HasPrefix(s.row.call, "return ") { // from two jobs that run at the same time
		s.hold(topic, 100*time.Millisecond, d) // when the second one runs as well
		s.hold(topic, time.Second, second)
		s.Pass(time.Second)
		return
	}
	s.start(topic, "ann", d)
	s.Pass(time.Second)
	s.start(topic, "bob", second)
}

// stopped reports whether what waits by the row does.
func (s *stopStage) stopped(topic string) bool {
	s.Helper()
	if s.row.waits == "the schedule" {
		before := s.runs(topic, "s")
		s.Pass(2100 * time.Millisecond)
		return s.runs(topic, "s") == before
	}
	s.asks++
	id := fmt.Sprint("ask", s.asks)
	s.Enqueue(topic, id, delayq.Key("k"))
	s.Pass(10 * time.Millisecond)
	return s.runs(topic, id) == 0
}

var stopEnds = map[string]func(c *delayq.Client, ctx context.Context, topic string) error{
	"Resume":    func(c *delayq.Client, ctx context.Context, topic string) error { return c.Resume(ctx, topic, "ann") },
	"ResumeAll": (*delayq.Client).ResumeAll,
	"EndHold":   (*delayq.Client).EndHold,
	"ResumeKey": func(c *delayq.Client, ctx context.Context, topic string) error { return c.ResumeKey(ctx, topic, "k") },
	"ResumeSchedule": func(c *delayq.Client, ctx context.Context, topic string) error {
		return c.ResumeSchedule(ctx, topic, "s")
	},
}

func (s *stopStage) end(name, topic string) {
	s.Helper()
	err := stopEnds[name](s.Client, s.Context(), topic)
	if name != "ResumeSchedule" || s.row.waits == "the schedule" {
		require.NoError(s, err)
	}
	s.Pass(10 * time.Millisecond)
}

// The table of the calls that stop jobs is what they do.
func TestStoppingIsAsTheTableSays(t *testing.T) {
	t.Parallel()
	rows := stopRows(t)
	require.Len(t, rows, 7)
	for _, row := range rows {
		t.Run(row.call, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				s := newStopStage(b, row)
				s.playWaits()
				s.playEnds()
				s.playItself()
				s.playSecond()
			})
		})
	}
}

// playWaits plays what waits and what does not, and what Explain says of it.
func (s *stopStage) playWaits() {
	topic := s.topic()
	s.Enqueue(topic, "long", delayq.Key("k"))
	s.Pass(0)
	s.start(topic, "ann", time.Hour)
	if s.row.waits == "the schedule" {
		began := s.runs(topic, "s")
		s.Pass(3 * time.Second)
		require.Equal(s, began, s.runs(topic, "s"))
		slot := s.SlotID("s", s.At().Truncate(time.Second))
		e, err := s.Inspector.Explain(s.Context(), topic, slot)
		require.NoError(s, err)
		require.EqualValues(s, s.row.explain, e.Reasons[0].Code)
		id, err := s.Client.Trigger(s.Context(), topic, "s")
		require.NoError(s, err)
		s.Enqueue(topic, "plain")
		s.Pass(10 * time.Millisecond)
		require.Equal(s, began+1, s.runs(topic, "s"), id)
		require.Equal(s, 1, s.runs(topic, "plain"))
		return
	}
	s.Enqueue(topic, "x", delayq.Key("k"))
	s.Enqueue(topic, "later", delayq.Key("k"), delayq.ProcessIn(time.Second))
	s.Enqueue(topic, "of another", delayq.Key("another"))
	s.Enqueue(topic, "plain")
	s.Pass(3 * time.Second)
	_, err := s.Client.Get(s.Context(), topic, "long")
	require.ErrorIs(s, err, delayq.ErrNotFound, "it ran on to its end")
	for _, id := range []string{"x", "later"} {
		require.Equal(s, delayq.StateReady, s.State(topic, id))
		e, err := s.Inspector.Explain(s.Context(), topic, id)
		require.NoError(s, err)
		require.EqualValues(s, s.row.explain, e.Reasons[0].Code, id)
	}
	for _, id := range []string{"of another", "plain"} {
		require.Equal(s, s.row.waits == "the key", s.runs(topic, id) == 1, "%s waits for %s", id, s.row.waits)
	}
}

// playEnds plays which calls end it.
func (s *stopStage) playEnds() {
	for name := range stopEnds {
		topic := s.topic()
		s.start(topic, "ann", time.Hour)
		require.True(s, s.stopped(topic))
		s.end(name, topic)
		listed := slices.Contains(strings.Split(strings.ReplaceAll(s.row.endedBy, "`", ""), ", "), name)
		require.Equal(s, !listed, s.stopped(topic), name)
	}
}

// playItself plays whether it ends by itself.
func (s *stopStage) playItself() {
	topic := s.topic()
	s.start(topic, "ann", time.Minute)
	if s.row.itself == "never" {
		s.Pass(10 * time.Minute)
		require.True(s, s.stopped(topic))
		return
	}
	require.Contains(s, []string{"after `For`", "after its time"}, s.row.itself)
	s.Pass(59 * time.Second)
	require.True(s, s.stopped(topic))
	s.Pass(time.Second)
	require.False(s, s.stopped(topic))
}

// playSecond plays what a second one changes.
func (s *stopStage) playSecond() {
	switch s.row.second {
	case "each `By` has its own":
		topic := s.topic()
		s.twice(topic, time.Hour, time.Hour)
		s.end("Resume", topic)
		require.True(s, s.stopped(topic), "that of bob is left")
		require.NoError(s, s.Client.Resume(s.Context(), topic, "bob"))
		require.False(s, s.stopped(topic))
	case "the later end counts":
		for _, times := range [][2]time.Duration{{time.Minute, 20 * time.Second}, {20 * time.Second, time.Minute}} {
			topic := s.topic()
			s.twice(topic, times[0], times[1])
			s.Pass(57 * time.Second)
			require.True(s, s.stopped(topic), "%v", times)
			s.Pass(3 * time.Second)
			require.False(s, s.stopped(topic), "%v", times)
		}
	case "changes nothing":
		topic := s.topic()
		s.twice(topic, time.Hour, time.Hour)
		s.end(strings.Trim(s.row.endedBy, "`"), topic)
		require.False(s, s.stopped(topic), "one end is enough")
		require.Equal(s, "never", s.row.itself, "otherwise the end of the first one would count")
	default:
		s.T.Fatalf("a second one: %q", s.row.second)
	}
}
