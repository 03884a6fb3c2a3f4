package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/delayq/delayq/internal/redistest"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{7}, 7},
		{[]float64{9, 1, 4}, 4},
		{[]float64{4, 1, 9, 2}, 3},
	} {
		in := slices.Clone(c.values)
		if got := median(c.values); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.values, got, c.want)
		}
		if !slices.Equal(in, c.values) {
			t.Errorf("median changed its argument from %v to %v", in, c.values)
		}
	}
}

func TestSummary(t *testing.T) {
	got := summary([]sample{
		{figRate: 10, figEarly: 0},
		{figRate: 30, figEarly: 1, figP50: 5},
		{figRate: 20, figEarly: 0},
	})
	want := sample{figRate: 20, figEarly: 1, figP50: 5}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v: medians, but the worst of the early jobs", got, want)
	}
}

func TestRatios(t *testing.T) {
	got := ratios(sample{figRate: 30, figCPU: 1, figP50: 3}, sample{figRate: 10, figCPU: 0})
	if want := (sample{figRate: 3}); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v: no ratio to nothing", got, want)
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for _, c := range []struct {
		values  []int
		p, want int
	}{
		{nil, 50, 0},
		{[]int{8}, 0, 8},
		{[]int{8}, 99, 8},
		{[]int{1, 2}, 50, 1},
		{[]int{1, 2, 3}, 50, 2},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
	} {
		if got := percentile(c.values, c.p); got != c.want {
			t.Errorf("percentile %d of %d values = %d, want %d", c.p, len(c.values), got, c.want)
		}
	}
}

func TestCorrectOmission(t *testing.T) {
	got := correctOmission([]time.Duration{500 * time.Microsecond, 3500 * time.Microsecond}, time.Millisecond)
	want := []time.Duration{500 * time.Microsecond, 3500 * time.Microsecond, 2500 * time.Microsecond, 1500 * time.Microsecond}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// ending is an output that ends what writes to it.
type ending struct {
	bytes.Buffer
	end func()
}

func (w *ending) Write(p []byte) (int, error) {
	w.end()
	return w.Buffer.Write(p)
}

func TestPingerThatEndsAtOnceHasAnAnswer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out := ending{end: cancel} // once it is connected
	if err := pinger(ctx, "", redistest.Start(t).Addr(), strings.NewReader(""), &out); err != nil {
		t.Fatal(err)
	}
	var connected bool
	var waits []time.Duration
	result := json.NewDecoder(&out)
	if err := errors.Join(result.Decode(&connected), result.Decode(&waits)); err != nil {
		t.Fatal(err)
	}
	if !connected || len(waits) == 0 {
		t.Errorf("connected %t, %d waits, want at least 1", connected, len(waits))
	}
}

func TestRequestCounter(t *testing.T) {
	stream := "*1\r\n$4\r\nPING\r\n" +
		"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n" + // an empty argument
		"*2\r\n$3\r\nGET\r\n$11\r\n*1\r\n$4\r\nPIN\r\n" // an argument that looks like a request
	for size := 1; size <= len(stream); size++ {
		var c requestCounter
		var got int64
		for part := range slices.Chunk([]byte(stream), size) {
			got += c.feed(part)
		}
		if got != 3 {
			t.Fatalf("in parts of %d bytes: %d commands, want 3", size, got)
		}
	}
}

func TestParseInfo(t *testing.T) {
	got := parseInfo("# CPU\r\nused_cpu_sys:1.5\r\n\r\n# Keyspace\r\ndb0:keys=1,expires=0\r\n")
	if len(got) != 2 || got["used_cpu_sys"] != "1.5" || got["db0"] != "keys=1,expires=0" {
		t.Errorf("got %v", got)
	}
}

func TestTally(t *testing.T) {
	tally := newTally(130)
	for i := range 130 {
		tally.note(i)
	}
	if _, err := tally.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := tally.check(); err != nil {
		t.Errorf("every job came once: %v", err)
	}
	tally.note(5)
	tally.note(130)
	if err := tally.check(); err == nil || err.Error() != "1 jobs came twice, 1 deliveries were of no job of this row" {
		t.Errorf("got %v", err)
	}
}

func TestAddLateness(t *testing.T) {
	s := sample{}
	addLateness(s, []time.Duration{2 * time.Millisecond, -time.Millisecond, 0})
	want := sample{figEarly: 1, figFirst: -1, figP50: 0, figP99: 2, figWorst: 2}
	if fmt.Sprint(s) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", s, want)
	}
}

func TestNumber(t *testing.T) {
	for _, c := range []struct {
		v        float64
		decimals int
		want     string
	}{
		{0, 1, "0.0"},
		{0.0123, 1, "0.012"},
		{999, 0, "999"},
		{1000, 0, "1,000"},
		{-1234567.891, 2, "-1,234,567.89"},
		{3.5, -1, "3.5"},
	} {
		if got := number(c.v, c.decimals); got != c.want {
			t.Errorf("number(%v, %d) = %q, want %q", c.v, c.decimals, got, c.want)
		}
	}
}

// testReport is a report with a row of each shape.
func testReport() report {
	two := row{
		id: "enqueue/64", title: "enqueue",
		sides:   []side{{label: "delayq"}, {label: "asynq"}},
		targets: []target{timesAtLeast(figRate, 3.5), timesAtMost(figCPU, 1)},
	}
	one := row{
		id: "scale", title: "scale",
		sides:   []side{{label: "delayq"}},
		targets: []target{atMost(figGrowth(stepCancel), 1.5), timesAtLeast(figRate, 2)},
	}
	return report{
		Date:    time.Date(2020, 2, 3, 0, 0, 0, 0, time.UTC),
		Machine: machine{OS: "linux", Arch: "amd64", CPU: "Chip", Cores: 2, Go: "go1", Redis: "7", Asynq: "v0"},
		Rounds:  1,
		Rows: []rowReport{
			two.report([][]sample{
				{{figRate: 40000, figCPU: 20, figCommands: 0.0125, figBytes: 250, figAllocs: 9}},
				{{figRate: 10000, figCPU: 10, figCommands: 1, figBytes: 500, figAllocs: 18}},
			}),
			one.report([][]sample{{{
				figGrowth(stepCancel): 1.25, figCost(stepCancel, 5000): 2.5, figCost(stepCancel, 10): 2,
			}}}),
		},
	}
}

func TestWriteText(t *testing.T) {
	want := `2020-02-03 · 2 cores Chip · linux/amd64 · go1 · Redis 7 · asynq v0 · rounds: 1, medians

                      jobs/s  Redis µs/job  commands/job     bytes/job    allocs/job

enqueue (enqueue/64)
  delayq              40,000          20.0         0.013           250           9.0
  asynq               10,000          10.0         1.000           500          18.0
  ratio                4.00×         2.00×         0.01×         0.50×         0.50×
  target jobs/s ≥ 3.5×: 4.00×, met
  target Redis µs/job ≤ 1×: 2.00×, MISSED

scale (scale)
  delayq
    growth: cancel 1.25×
    cancel: 2.00 @ 10 · 2.50 @ 5,000
  target growth: cancel ≤ 1.5×: 1.25×, met
  target jobs/s ≥ 2×: not measured

2 targets met, 1 missed
`
	var out strings.Builder
	if err := testReport().writeText(&out); err != nil {
		t.Fatal(err)
	}
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}

// Each side of a row with more than two is compared with the second.
func TestWriteManySides(t *testing.T) {
	r := row{
		id: "hooks", title: "work",
		sides:   []side{{label: "a"}, {label: "base"}, {label: "b"}, {label: "c"}},
		targets: []target{timesAtLeast(figRate, 0.95)},
	}
	rep := testReport()
	rep.Rows = []rowReport{r.report([][]sample{{{figRate: 90, figProcess: 1.5}}, {{figRate: 100, figProcess: 1}}, {{figRate: 50}}, {{figRate: 25}}})}
	want := `
work (hooks)
  a                       90
    process 1.50 µs/job
  base                   100
    process 1.00 µs/job
  ratio                0.90×
  b                       50
  ratio                0.50×
  c                       25
  ratio                0.25×
  target jobs/s ≥ 0.95×: 0.90×, MISSED

0 targets met, 1 missed
`
	var out strings.Builder
	if err := rep.writeText(&out); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(out.String(), want) {
		t.Errorf("got:\n%s\nwant at the end:\n%s", out.String(), want)
	}
}

func TestOwnCPU(t *testing.T) {
	before, known := ownCPU()
	if !known {
		t.Skip("this system does not tell")
	}
	for now := before; now <= before; { // this takes CPU time, so it ends
		now, _ = ownCPU()
	}
}

func TestWriteJSON(t *testing.T) {
	var out bytes.Buffer
	if err := testReport().writeJSON(&out); err != nil {
		t.Fatal(err)
	}
	var back report
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if got := back.Rows[0].Ratios[figRate]; got != 4 {
		t.Errorf("ratio of rates is %v after a round trip, want 4", got)
	}
	if target := back.Rows[1].Targets[1]; target.Value != nil || target.Met {
		t.Errorf("a target that was not measured is %+v after a round trip", target)
	}
}

func TestPlotCurves(t *testing.T) {
	file := filepath.Join(t.TempDir(), "curves.svg")
	if err := plotCurves(file, curvesOf(testReport().Rows[1].Sides[0])); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(svg, []byte("<svg")) || !bytes.Contains(svg, []byte("cancel")) {
		t.Error("no SVG with the name of the curve")
	}
}

func TestSelection(t *testing.T) {
	all := regexp.MustCompile("")
	s := selection{rows: regexp.MustCompile("^(enqueue/1|scale)$"), sides: all, rounds: 5}
	chosen := s.apply(rows())
	if len(chosen) != 2 || chosen[0].id != "enqueue/1" || chosen[1].id != "scale" {
		t.Fatalf("got %d rows", len(chosen))
	}
	if a, b := s.roundsOf(chosen[0]), s.roundsOf(chosen[1]); a != 5 || b != 1 {
		t.Errorf("got %d and %d rounds, want 5 and, of a long row, 1", a, b)
	}
	s = selection{rows: regexp.MustCompile("^enqueue/1$"), sides: regexp.MustCompile("asynq"), rounds: 1}
	if only := s.apply(rows()); len(only) != 1 || len(only[0].sides) != 1 || only[0].targets != nil {
		t.Error("without our side there is one side and no target")
	}
	s = selection{rows: regexp.MustCompile("^hooks$"), sides: regexp.MustCompile("prom|otel"), rounds: 1}
	if rest := s.apply(rows()); len(rest) != 1 || len(rest[0].sides) != 3 || rest[0].targets != nil {
		t.Error("without the second side there is no target, because it is a ratio to that side")
	}
}

// TestRows holds the table to what the report can show.
func TestRows(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rows() {
		if seen[r.id] || r.id == "" || r.title == "" || len(r.sides) == 0 || len(r.targets) == 0 {
			t.Errorf("row %q: no ID of its own, no title, no side or no target", r.id)
		}
		seen[r.id] = true
		for _, target := range r.targets {
			if textOf(target.figure).label == target.figure && !strings.HasPrefix(target.figure, "growth: ") {
				t.Errorf("row %q: figure %q is not known to the text report", r.id, target.figure)
			}
		}
	}
	for _, s := range []sizes{fullSizes(), quickSizes()} {
		if !slices.IsSorted(s.scale) || s.scaleJobs > s.scale[0] {
			t.Errorf("sizes of scale %v with %d jobs measured at each", s.scale, s.scaleJobs)
		}
	}
}

func TestParseFlags(t *testing.T) {
	for _, c := range []struct {
		args   []string
		rounds int
		bad    bool
	}{
		{nil, 3, false},
		{[]string{"-quick"}, 1, false},
		{[]string{"-quick", "-rounds", "2"}, 2, false},
		{[]string{"-rounds", "-1"}, 0, true},
		{[]string{"-rows", "("}, 0, true},
		{[]string{"extra"}, 0, true},
	} {
		got, err := parseFlags(c.args, io.Discard)
		if (err != nil) != c.bad || err == nil && got.rounds != c.rounds {
			t.Errorf("%v: rounds %d, error %v", c.args, got.rounds, err)
		}
	}
}

func TestSumCalls(t *testing.T) {
	text := "# Commandstats\r\ncmdstat_evalsha:calls=12,usec=9,usec_per_call=0.75\r\n" +
		"cmdstat_client|list:calls=3,usec=1\r\ncmdstat_zadd:calls=100,usec=2\r\ncmdstat_client:calls=4\r\n"
	got, err := sumCalls(text, map[string]bool{"evalsha": true, "client": true, "blmove": true})
	if err != nil || got != 19 {
		t.Errorf("got %d, %v; want 19", got, err)
	}
	if _, err := sumCalls("cmdstat_evalsha:calls=many,usec=9", map[string]bool{"evalsha": true}); err == nil {
		t.Error("a text that is no number has no error")
	}
}

func TestParseStat(t *testing.T) {
	const line = "4711 (postgres: a) b) S 42 4711 4711 0 -1 4194560 100 200 0 0 150 50 7 3 20 0 1 0 100 1000 10"
	pid, parent, own, ended := parseStat(line)
	if pid != 4711 || parent != 42 || own != 2*time.Second || ended != 100*time.Millisecond {
		t.Errorf("got process %d of %d, %v and %v", pid, parent, own, ended)
	}
	if pid, _, _, _ := parseStat("4711 (cut"); pid != 0 {
		t.Error("a line that is cut off has a process")
	}
}
