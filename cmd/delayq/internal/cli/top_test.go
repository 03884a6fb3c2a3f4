package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// snapshot is what the view of a shop has after two seconds of fixed numbers.
func snapshot(t *testing.T, width, height int) *top {
	a := &app{
		process: &process{out: &output{terminal: true}, getenv: func(string) string { return "" }},
		format:  formatTable, timeStyle: timeUTC, actor: "alice", connection: connection{prefix: "shop", timeout: time.Second},
	}
	m := newTop(t.Context(), a, nil, nil, "redis-1:6379")
	start := time.Date(2026, 11, 20, 14, 2, 5, 0, time.UTC)
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	for second := range 8 {
		at := start.Add(time.Duration(second) * time.Second)
		m.Update(topTick(at))
		m.Update(topSample{stats: shopStats(at, second), ended: at.Add(time.Millisecond)})
	}
	m.Update(topForecast{redis: &delayq.RedisInfo{
		Version: "7.2.5", Role: "master", UsedMemory: 2040109466, MaxMemory: 4 << 30, Eviction: "noeviction", RoundTrip: 312 * time.Microsecond,
	}, due: map[string][]int64{
		"mail:welcome": {210, 230, 320, 410, 470, 540, 520, 430, 380, 310, 260, 230},
		"order:cancel": {3900, 4100, 4300, 4200, 4400, 4700, 4500, 4300, 4200, 4400, 4100, 4100},
		"refund:poll":  {5, 9, 7, 8, 6, 8, 7, 9, 7, 8, 6, 8},
	}})
	return m
}

// shopStats are numbers of a shop, some seconds after the first ones.
func shopStats(at time.Time, second int) []delayq.TopicStats {
	n := int64(second)
	rise := n * (n + 7) / 2
	return []delayq.TopicStats{
		{
			Topic: "mail:welcome", At: at, Scheduled: 8120, Ready: 12_100 + 100*n, Running: 64, Dead: 110 + n, Overdue: 12_100 + 100*n, Servers: 2, Workers: 64,
			Retrying: 1902, OldestOverdue: at.Add(-31200*time.Millisecond - time.Duration(n)*time.Second), NextDue: at,
			Counters: map[delayq.Counter]int64{delayq.CounterEnqueued: 820 * n, delayq.CounterAcked: 303 * n, delayq.CounterRetried: 6 * n, delayq.CounterBuried: n},
		},
		{
			Topic: "order:cancel", At: at, Scheduled: 1_204_551, Running: 12, Dead: 4, Retrying: 31, Servers: 3, Workers: 64, NextDue: at.Add(412 * time.Millisecond),
			Counters: map[delayq.Counter]int64{delayq.CounterEnqueued: 300*n + rise, delayq.CounterAcked: 879*n - rise},
		},
		{
			Topic: "refund:poll", At: at, Scheduled: 311, Ready: 2, Overdue: 2, OldestOverdue: at.Add(-250 * time.Second),
			Counters: map[delayq.Counter]int64{delayq.CounterEnqueued: 2 * n},
		},
		{
			Topic: "report:weekly", At: at, Scheduled: 6, Servers: 1, Workers: 4, Schedules: 6, Paused: true, Counters: map[delayq.Counter]int64{},
			Pauses: []delayq.PauseInfo{{By: "bob", Reason: "bank is down", Since: at.Add(-time.Hour)}}, NextDue: at.Add(76 * time.Hour),
		},
		{
			Topic: "sms:發送", At: at, Scheduled: 12, Servers: 1, Workers: 8, Dead: n / 3, NextDue: at.Add(time.Minute),
			Counters: map[delayq.Counter]int64{delayq.CounterEnqueued: n, delayq.CounterAcked: n, delayq.CounterBuried: n / 3},
		},
	}
}

// plain returns a frame without colors. It has the size of the terminal.
func plain(t *testing.T, m *top) string {
	t.Helper()
	frame := ansi.Strip(m.View().Content)
	lines := strings.Split(frame, "\n")
	require.Len(t, lines, m.height, frame)
	for _, line := range lines {
		require.LessOrEqual(t, ansi.StringWidth(line), m.width, line)
	}
	return frame
}

// key sends a key. It executes no command.
func keyOf(name string) tea.KeyPressMsg {
	codes := map[string]rune{
		"enter": tea.KeyEnter, "esc": tea.KeyEscape, "tab": tea.KeyTab, "up": tea.KeyUp, "down": tea.KeyDown, "left": tea.KeyLeft, "right": tea.KeyRight,
		"pgup": tea.KeyPgUp, "pgdown": tea.KeyPgDown, "home": tea.KeyHome, "end": tea.KeyEnd, "backspace": tea.KeyBackspace,
	}
	if code, ok := codes[name]; ok {
		return tea.KeyPressMsg{Code: code}
	}
	if name == "shift+tab" {
		return tea.KeyPressMsg{Code: tea.KeyTab, Mod: tea.ModShift}
	}
	if rest, ok := strings.CutPrefix(name, "ctrl+"); ok {
		return tea.KeyPressMsg{Code: []rune(rest)[0], Mod: tea.ModCtrl}
	}
	return tea.KeyPressMsg{Code: []rune(name)[0], Text: name}
}

// The view of a fixed snapshot, in the sizes that it is made for.
func TestGoldenTopSnapshot(t *testing.T) {
	var text strings.Builder
	for _, size := range []struct{ width, height int }{{80, 24}, {120, 40}, {40, 8}} {
		m := snapshot(t, size.width, size.height)
		fmt.Fprintf(&text, "=== %d×%d\n%s\n", size.width, size.height, plain(t, m))
	}
	m := snapshot(t, 80, 24)
	show := func(what string) { fmt.Fprintf(&text, "=== %s\n%s\n", what, plain(t, m)) }
	m.Update(keyOf("j"))
	m.Update(keyOf("s"))
	show("the second topic is selected, then s: by name")
	m.Update(keyOf("p"))
	show("p")
	m.Update(keyOf("n"))
	show("n")
	m.Update(topActed{err: errors.New("x")})
	m.Update(topSample{err: errors.New("dial tcp 127.0.0.1:6379: connect: connection refused"), ended: m.now})
	m.Update(topTick(m.now.Add(10 * time.Second)))
	show("Redis is gone")
	compare(t, "testdata/top_snapshot.txt", text.String())
}

// Topics in trouble come first, and those of a kind by name.
func TestTopSortsTroubleFirst(t *testing.T) {
	m := snapshot(t, 80, 24)
	order := func() (names []string) {
		for _, row := range m.rows(m.screen()) {
			names = append(names, row.topic)
		}
		return names
	}
	require.Equal(t, []string{"refund:poll", "mail:welcome", "report:weekly", "sms:發送", "order:cancel"}, order())
	for _, want := range [][]string{
		{"mail:welcome", "order:cancel", "refund:poll", "report:weekly", "sms:發送"}, // name
		{"mail:welcome", "refund:poll", "order:cancel", "report:weekly", "sms:發送"}, // overdue
		{"mail:welcome", "order:cancel", "sms:發送", "refund:poll", "report:weekly"}, // dead
		{"order:cancel", "mail:welcome", "sms:發送", "refund:poll", "report:weekly"}, // rate
		{"refund:poll", "mail:welcome", "report:weekly", "sms:發送", "order:cancel"},
	} {
		m.Update(keyOf("s"))
		require.Equal(t, want, order())
	}
}

// The selection stays on its topic when topics change places, come and go.
func TestTopSelectionFollowsItsTopic(t *testing.T) {
	m := snapshot(t, 80, 24)
	for range 2 {
		m.Update(keyOf("j"))
	}
	selected := func() string { return m.rows(m.screen())[m.screen().index].topic }
	require.Equal(t, "report:weekly", selected())
	stats := shopStats(m.at.Add(time.Second), 8)
	stats[3].Paused, stats[3].Pauses = false, nil
	m.Update(topSample{stats: stats, ended: m.now.Add(time.Second)})
	require.Equal(t, "report:weekly", selected())
	require.Equal(t, 4, m.screen().index)
	m.Update(topSample{stats: slices.Delete(stats, 3, 4), ended: m.now.Add(time.Second)})
	require.Equal(t, "order:cancel", selected())
	m.Update(topSample{ended: m.now.Add(time.Second)}) // all topics are gone
	require.Contains(t, plain(t, m), "no topics with the prefix shop")
}

// A held topic says until when, and comes before those that are paused.
func TestTopHeldTopic(t *testing.T) {
	m := snapshot(t, 120, 24)
	stats := shopStats(m.at.Add(time.Second), 8)
	stats[4].HeldUntil, stats[4].HeldBy, stats[4].HeldReason = m.at.Add(time.Minute), "job otp-1", "429 Too Many Requests"
	m.Update(topSample{stats: stats, ended: m.now.Add(time.Second)})
	var order []string
	for _, row := range m.rows(m.screen()) {
		order = append(order, row.topic)
	}
	require.Equal(t, []string{"refund:poll", "mail:welcome", "sms:發送", "report:weekly", "order:cancel"}, order)
	require.Contains(t, plain(t, m), "held until ")
	for range 2 {
		m.Update(keyOf("j"))
	}
	require.Regexp(t, `sms:發送: held until .* by job otp-1 "429 Too Many Requests" · dead \+\d`, plain(t, m))
	stats[4].HeldUntil = time.Time{}
	m.Update(topSample{stats: stats, ended: m.now.Add(time.Second)})
	require.NotContains(t, plain(t, m), "held")
}

// Rates are differences of counters by Redis's clock, whenever the samples arrive.
func TestTopRates(t *testing.T) {
	m := snapshot(t, 120, 24)
	require.Equal(t, 820.0, m.topics["mail:welcome"].Rates.Enqueued)
	require.Equal(t, 303.0, m.topics["mail:welcome"].Rates.Finished)
	require.Equal(t, 7.0, m.topics["mail:welcome"].Rates.Failed)
	m.Update(topSample{stats: shopStats(m.at.Add(10*time.Second), 9), ended: m.now.Add(time.Hour)}) // two steps in ten seconds
	require.Equal(t, 164.0, m.topics["mail:welcome"].Rates.Enqueued)
	m.Update(topSample{stats: shopStats(m.at.Add(time.Second), 0), ended: m.now.Add(time.Second)}) // Redis was emptied
	require.Zero(t, m.topics["mail:welcome"].Rates.Enqueued)
}

// If some topics cannot be read, the others are new, these remain, and the view says why.
func TestTopPartOfTheTopics(t *testing.T) {
	m := snapshot(t, 120, 24)
	m.Update(topSample{stats: shopStats(m.at.Add(time.Second), 8)[:2], err: errors.New("topic refund:poll: WRONGTYPE"), ended: m.now.Add(time.Second)})
	frame := plain(t, m)
	require.Contains(t, frame, "WRONGTYPE")
	require.Contains(t, frame, "refund:poll          311")
	require.Contains(t, frame, "mail:welcome       8,120  12,900")
}

// On a replica the keys that act are left out.
func TestTopOnAReplica(t *testing.T) {
	m := snapshot(t, 80, 24)
	require.Contains(t, plain(t, m), "p pause")
	m.Update(topForecast{redis: &delayq.RedisInfo{Role: "slave"}})
	require.NotContains(t, plain(t, m), "p pause")
	m.Update(keyOf("p"))
	require.Nil(t, m.question)
}

// A page that arrives after another one was asked for is not shown.
func TestTopLatePage(t *testing.T) {
	inWorld(t, func(w *world) {
		d := w.drive(80, 24)
		d.press("/", "text:mail", "enter", "enter")
		d.Pass(2 * time.Second)
		_, late := d.m.Update(topSample{ended: time.Now(), stats: []delayq.TopicStats{w.Stats("mail:welcome")}})
		require.NotNil(w, late)
		d.press("4")
		require.Equal(w, "dead-1", d.m.screen().jobs[0].ID)
		d.run(late)
		require.Equal(w, "dead-1", d.m.screen().jobs[0].ID)
	})
}

// No frame is larger than the terminal, however small it is and whatever is in it.
func TestTopFitsEveryTerminal(t *testing.T) {
	for width := 1; width < 140; width += 3 {
		for height := 1; height < 30; height += 4 {
			m := snapshot(t, width, height)
			for _, key := range []string{"j", "end", "/", "x", "esc", "p", "n", "?", "pgdown", "esc", "tab", "tab", "tab"} {
				m.Update(keyOf(key))
				for line := range strings.SplitSeq(m.View().Content, "\n") {
					require.LessOrEqual(t, ansi.StringWidth(line), width)
				}
				require.LessOrEqual(t, strings.Count(m.View().Content, "\n"), height-1)
			}
		}
	}
}

// Without a color, the frame has none: attributes such as bold remain.
func TestTopWithoutColors(t *testing.T) {
	m := snapshot(t, 120, 24)
	require.Contains(t, m.View().Content, "\x1b[31mNO SERVER\x1b[0m")
	m.a.noColor = true
	require.NotContains(t, m.View().Content, "\x1b[3")
	require.Contains(t, m.View().Content, "\x1b["+bold+"m")
}

// A driver presses keys and executes the commands that follow.
type driver struct {
	*world
	m     *top
	trips *roundTrips
	quit  bool
}

// drive returns a view of the world.
func (w *world) drive(width, height int) *driver {
	trips := new(roundTrips)
	a := &app{
		process: &process{
			in: &input{Reader: strings.NewReader(""), terminal: true}, out: &output{terminal: true}, getenv: func(name string) string { return w.env[name] },
			dial: func(c *connection) (redis.UniversalClient, error) {
				rdb, err := w.dial(c)
				if err == nil {
					rdb.AddHook(trips)
				}
				return rdb, err
			},
		},
		format: formatTable, timeStyle: timeUTC, actor: "alice", connection: connection{prefix: w.env["DELAYQ_PREFIX"], timeout: time.Minute},
	}
	w.Cleanup(a.close)
	m, err := a.newTop(w.Context(), "redis-1:6379")
	require.NoError(w, err)
	d := &driver{world: w, m: m, trips: trips}
	d.send(tea.WindowSizeMsg{Width: width, Height: height})
	d.tick()
	return d
}

// tick lets a second pass.
func (d *driver) tick() {
	d.Pass(time.Second)
	d.send(topTick(time.Now()))
}

// send sends a message, and those that follow from it.
func (d *driver) send(msg tea.Msg) {
	if batch, ok := msg.(tea.BatchMsg); ok {
		for _, cmd := range batch {
			d.run(cmd)
		}
		return
	}
	if _, ok := msg.(tea.QuitMsg); ok {
		d.quit = true
	}
	_, cmd := d.m.Update(msg)
	d.run(cmd)
}

func (d *driver) run(cmd tea.Cmd) {
	if cmd != nil {
		d.send(cmd())
	}
}

// press presses keys, one after another. "text:…" is typed.
func (d *driver) press(keys ...string) {
	for _, key := range keys {
		if text, ok := strings.CutPrefix(key, "text:"); ok {
			for _, r := range text {
				d.send(keyOf(string(r)))
			}
			continue
		}
		d.send(keyOf(key))
	}
}

// see adds the frame to the golden file.
func (d *driver) see(what string) {
	frame := plain(d.T, d.m)
	fmt.Fprintf(&d.text, "=== %s\n%s\n", what, d.clean(frame))
}

// What each key shows.
func TestGoldenTopKeys(t *testing.T) {
	inWorld(t, func(w *world) {
		d := w.drive(80, 24)
		d.see("topics")
		d.press("/", "text:mail", "enter", "enter")
		d.see("mail:welcome: the ready jobs")
		d.press("e")
		require.Contains(w, plain(t, d.m), "Ready, but not running: 1 of 1 workers are busy")
		require.NotContains(w, plain(t, d.m), "e explain")
		d.press("esc", "enter", "e", "esc", "esc")
		d.press("t")
		d.see("t: the running ones")
		d.press("4")
		d.see("4: the dead ones")
		d.press("/", "text:--error \"550 mail\"", "enter", "j", "enter")
		d.send(tea.WindowSizeMsg{Width: 120, Height: 30}) // with room for the ID of a server
		d.see("filter, the second one, enter")
		d.press("esc", "/", "esc", "1", "enter")
		d.see("esc, no filter, the scheduled one, enter")
		d.send(tea.WindowSizeMsg{Width: 80, Height: 24})
		d.press("esc", "esc", "/", "esc", "tab")
		d.see("failures")
		d.press("enter")
		d.see("a group of failures")
		d.send(tea.WindowSizeMsg{Width: 120, Height: 24}) // with room for the name of a host
		d.press("esc", "tab")
		d.see("servers")
		d.press("enter")
		d.see("a server")
		d.send(tea.WindowSizeMsg{Width: 80, Height: 24})
		d.press("esc", "tab")
		d.see("schedules")
		d.press("j", "enter")
		d.see("a schedule")
		d.press("?")
		d.see("help")
		d.golden("top_keys")
		require.False(w, d.quit)
		d.press("q")
		require.True(w, d.quit)
	})
}

// A page of jobs is as long as the screen. The next ones are read as one goes on.
func TestTopPages(t *testing.T) {
	inWorld(t, func(w *world) {
		for i := range 50 {
			w.Enqueue("many", fmt.Sprintf("job-%02d", i), delayq.ProcessIn(time.Hour+time.Duration(i)*time.Second))
		}
		d := w.drive(80, 24)
		d.press("/", "text:many", "enter", "enter")
		ids := func() (list []string) {
			for _, job := range d.m.screen().jobs {
				list = append(list, job.ID)
			}
			return list
		}
		require.Equal(w, []string{"job-00", "job-17"}, []string{ids()[0], ids()[17]})
		require.Len(w, ids(), 18)
		d.press("end", "down")
		require.Equal(w, "job-18", ids()[0])
		d.press("right")
		require.Equal(w, "job-36", ids()[0])
		require.Len(w, ids(), 14)
		d.press("right", "end", "down") // there is no more
		require.Equal(w, "job-36", ids()[0])
		d.press("left", "home", "up")
		require.Equal(w, "job-00", ids()[0])
		d.press("o")
		require.Equal(w, "job-49", ids()[0])
		d.press("/", "text:job-3", "enter")
		require.Len(w, ids(), 10)
		d.press("/", "ctrl+u", "text:a b", "enter")
		require.Contains(w, plain(t, d.m), "a filter is the beginning of one ID")
		d.press("esc")
		require.Len(w, ids(), 18)
	})
}

// Keys that act ask first, act under the operator's name, and say what was done.
func TestTopActs(t *testing.T) {
	inWorld(t, func(w *world) {
		d := w.drive(120, 24)
		d.press("/", "text:order:cancel", "enter", "p")
		require.Contains(w, plain(t, d.m), "pause order:cancel?")
		d.press("n")
		require.Contains(w, plain(t, d.m), "nothing was done")
		require.False(w, w.Stats("order:cancel").Paused)
		d.press("p", "y")
		require.Contains(w, plain(t, d.m), "order:cancel: paused")
		require.Contains(w, plain(t, d.m), "paused by alice")
		require.Equal(w, "alice", w.Stats("order:cancel").Pauses[0].By)
		audit, err := w.Inspector.Audit(w.Context(), 10)
		require.NoError(w, err)
		require.Len(w, audit, 1)
		require.Equal(w, []string{"alice", "pause"}, []string{audit[0].Actor, audit[0].Action})
		d.press("P", "Y")
		require.False(w, w.Stats("order:cancel").Paused)

		d.press("enter")
		for _, act := range []struct {
			key, id string
			state   delayq.State
		}{{"X", "order-1", ""}, {"N", "order-2", delayq.StateReady}} {
			require.Equal(w, act.id, d.m.screen().key)
			d.press(act.key, "y")
			require.Equal(w, act.state, w.State("order:cancel", act.id))
			d.tick()
		}
		d.press("2", "B", "y")
		require.Equal(w, delayq.StateDead, w.State("order:cancel", "order-2"))
		d.press("4", "V", "y")
		require.NotEqual(w, delayq.StateDead, w.State("order:cancel", "order-2"))
		d.press("2", "B", "y", "4", "enter", "D", "y") // from the job itself
		require.Empty(w, w.State("order:cancel", "order-2"))
		require.Contains(w, plain(t, d.m), "not found")

		d.press("esc", "esc", "/", "esc", "/", "text:report:weekly", "enter", "P")
		require.Contains(w, plain(t, d.m), `end all pauses of report:weekly, which is paused by bob until 2000-01-01 01:`)
		d.press("y")
		require.False(w, w.Stats("report:weekly").Paused)
		d.press("tab", "tab", "tab", "/", "text:tick", "enter", "p", "y")
		info, err := w.Inspector.Schedule(w.Context(), "report:weekly", "tick")
		require.NoError(w, err)
		require.Equal(w, delayq.SchedulePaused, info.State)
		d.press("P", "y", "T", "y")
		require.Contains(w, plain(t, d.m), "tick: triggered")

		d.press("shift+tab", "shift+tab")
		require.Equal(w, "mail:welcome", d.m.rows(d.m.screen())[0].topic)
		d.press("V")
		require.Contains(w, plain(t, d.m), "revive 2 dead jobs of mail:welcome with this error?")
		d.press("y")
		require.Contains(w, plain(t, d.m), "mail:welcome: 2 jobs revived")
		require.Zero(w, w.Stats("mail:welcome").Dead)
	})
}

// Acts that are refused are left out from then on, and with --read-only from the beginning.
func TestTopReadOnly(t *testing.T) {
	inWorld(t, func(w *world) {
		d := w.drive(120, 24)
		acts := func() []string {
			return slices.DeleteFunc(slices.Collect(maps.Values(map[string]string{"p": " p pause", "P": " P resume", "X": " X cancel"})), func(label string) bool {
				return !strings.Contains(plain(t, d.m), label)
			})
		}
		d.press("/", "text:order:cancel", "enter")
		require.NotEmpty(w, acts())
		d.press("p")
		w.Redis.SetError("NOPERM this user has no permissions to run the 'evalsha' command")
		d.press("y")
		w.Redis.SetError("")
		require.Contains(w, plain(t, d.m), "refused by Redis")
		d.Pass(topSays)
		d.tick()
		require.Empty(w, acts())
		d.press("p", "y", "enter", "X", "y")
		require.Equal(w, delayq.StateScheduled, w.State("order:cancel", "order-1"))
		require.Empty(w, acts())
	})
}

// While Redis is away the last numbers remain and are marked. They are new again when it is back.
func TestTopWithoutRedis(t *testing.T) {
	inWorld(t, func(w *world) {
		w.Redis.SetError("LOADING Redis is loading the dataset in memory")
		d := w.drive(80, 24)
		require.Contains(w, plain(t, d.m), "Redis is not reachable: ")
		w.Redis.SetError("")
		d.tick()
		require.Contains(w, plain(t, d.m), "order:cancel")
		require.NotContains(w, plain(t, d.m), "not reachable")

		d.press("tab", "tab")
		w.Redis.SetError("LOADING Redis is loading the dataset in memory")
		for range 5 {
			d.tick()
		}
		require.Contains(w, plain(t, d.m), "OLD: these numbers are 5s old: ")
		require.Contains(w, plain(t, d.m), w.server)
		d.press("tab", "tab")
		require.Contains(w, plain(t, d.m), "order:cancel")
		w.Redis.SetError("")
		d.tick()
		require.NotContains(w, plain(t, d.m), "OLD:")

		d.m.Update(topTick(time.Now())) // whose call is never answered
		require.True(w, d.m.reading)
		_, cmd := d.m.Update(topTick(time.Now().Add(4 * time.Second)))
		require.Nil(w, cmd, "a second call")
		require.Contains(w, plain(t, d.m), "OLD: these numbers are 4s old: Redis does not answer")
	})
}

// A tick makes one call of Stats, which is the list of topics, a pipeline, and one more for topics
// with overdue jobs, whatever is shown.
// The forecast is read every ten seconds, and the rows that are shown as often as their screen
// says.
func TestTopCalls(t *testing.T) {
	inWorld(t, func(w *world) {
		d := w.drive(80, 24)
		for range 20 {
			d.tick()
		}
		during := func(ticks int) int {
			before := d.trips.n.Load()
			for range ticks {
				d.tick()
			}
			return int(d.trips.n.Load() - before)
		}
		const stats, aside = 3, 2 + 2 // two topics have scheduled jobs, and Redis describes itself
		require.Equal(w, 20*stats+2*aside, during(20))
		d.press("enter")
		require.Equal(w, 20*(stats+1)+2*aside, during(20)) // a page
		d.press("esc", "tab")
		d.tick()
		require.Equal(w, 20*stats+2*aside+2*2, during(20)) // failures of two states
		require.Zero(w, during(0))
	})
}

// roundTrips counts requests to Redis, without those that open a connection.
type roundTrips struct{ n atomic.Int64 }

func (r *roundTrips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *roundTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "hello" {
			r.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (r *roundTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.n.Add(1)
		return next(ctx, cmds)
	}
}

// What Redis holds cannot command the terminal.
func TestTopShowsNothingRaw(t *testing.T) {
	inWorld(t, func(w *world) {
		evil := "\x1b]0;owned\x07\r\n\u202e"
		w.Enqueue("evil", evil, delayq.Header("h", evil), delayq.ProcessIn(time.Hour))
		require.NoError(w, w.Client.Pause(w.Context(), "evil", delayq.Pause{By: evil, Reason: evil}))
		require.NoError(w, w.Client.Hold(delayq.WithActor(w.Context(), evil), "evil", time.Hour, evil))
		d := w.drive(120, 30)
		look := func() {
			for _, bad := range []string{"\x1b]", "\x07", "\r", "\u202e"} {
				require.NotContains(w, d.m.View().Content, bad)
			}
		}
		d.press("/", "text:evil", "enter")
		look()
		d.press("P")
		look()
		d.press("n", "enter")
		look()
		d.press("X")
		look()
		d.press("n", "enter")
		look()
	})
}

// A panic in a call ends the view.
func TestTopCallThatPanics(t *testing.T) {
	m := snapshot(t, 80, 24)
	msg := m.do(func(context.Context) tea.Msg { panic("broken") })()
	_, cmd := m.Update(msg)
	require.Equal(t, "broken", m.crash.value)
	require.Contains(t, string(m.crash.stack), "TestTopCallThatPanics")
	require.IsType(t, tea.QuitMsg{}, cmd())
}

// Without a terminal, or for programs, top says what to use instead.
func TestTopNeedsATerminal(t *testing.T) {
	inWorld(t, func(w *world) {
		require.Equal(w, exitUsage, w.do("top").code)
		require.Contains(w, w.do("top").err, "delayq stats --every 1s")
		w.terminal = true
		require.Contains(w, w.do("top", "-o", "json").err, "top is for people")
		w.env["TERM"] = "dumb"
		require.Equal(w, exitUsage, w.do("top").code)
	})
}

// The capacity of a topic is shown if its workers run batches, and counts for the jobs that run.
func TestTopicOfBatches(t *testing.T) {
	r := topicOf(&delayq.TopicStats{Topic: "mail", Workers: 4, Capacity: 4})
	require.Zero(t, r.Capacity)
	require.Equal(t, 4, r.capacity())
	require.Equal(t, "4", workersCell(r))
	r = topicOf(&delayq.TopicStats{Topic: "mail", Workers: 4, Capacity: 4000, Running: 1200})
	require.Equal(t, 4000, r.Capacity)
	require.Equal(t, "4, in batches: up to 4,000 jobs", workersCell(r))
	s := serverOf(&delayq.ServerInfo{Topics: map[string]delayq.TopicStatus{"mail": {Workers: 4, BatchSize: 1000}}})
	require.Equal(t, 1000, s.Topics[0].Batch)
}
