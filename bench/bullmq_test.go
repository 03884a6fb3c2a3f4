package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// twoSides is a row with a side that needs nothing, and BullMQ.
func twoSides() []row {
	needsNothing := func(context.Context, *bench) (sample, error) { return sample{figRate: 8}, nil }
	needsNode := func(context.Context, *bench, *bullmqChild) (sample, error) {
		return nil, errors.New("this must not run")
	}
	return []row{
		{id: "first", title: "first", sides: []side{{label: "delayq", measure: needsNothing}, bullmqSide(needsNode)}, targets: []target{timesAtLeast(figRate, 2)}},
		{id: "second", title: "second", sides: []side{{label: "delayq", measure: needsNothing}, {label: "asynq", measure: needsNothing}, bullmqSide(needsNode)}},
		{id: "third", title: "third", sides: []side{bullmqSide(needsNode)}},
	}
}

// runTwoSides runs it without Node.
func runTwoSides(t *testing.T) (reports []rowReport, notes string, err error) {
	t.Setenv("PATH", t.TempDir())
	var said strings.Builder
	b := &bench{notes: &said}
	any := regexp.MustCompile("")
	reports, err = b.run(t.Context(), twoSides(), selection{rows: any, sides: any, rounds: 2}, &progress{out: io.Discard, began: time.Now()})
	return reports, said.String(), errors.Join(err, b.close(t.Context()))
}

// Where Node is missing, BullMQ is left out, which is said once. The other
// sides are measured.
func TestBullMQIsLeftOut(t *testing.T) {
	t.Setenv("CI", "")
	reports, notes, err := runTwoSides(t)
	if err != nil {
		t.Fatal(err)
	}
	if notes != "\nbullmq is left out: node is not installed\n" {
		t.Errorf("got the remarks %q", notes)
	}
	if len(reports) != 2 {
		t.Fatalf("%d rows, want the two that have another side", len(reports))
	}
	first, second := reports[0], reports[1]
	if len(first.Sides) != 1 || len(first.Sides[0].Rounds) != 2 || first.Targets[0].Value != nil {
		t.Errorf("got %+v, want one side with two rounds, and a ratio that was not measured", first)
	}
	if len(second.Sides) != 2 || second.Ratios[figRate] != 1 {
		t.Errorf("got %+v, want two sides and their ratio", second)
	}
}

// In CI what is missing is a failure.
func TestBullMQMustBeThereInCI(t *testing.T) {
	t.Setenv("CI", "true")
	if _, _, err := runTwoSides(t); err == nil || !strings.Contains(err.Error(), "node is not installed") {
		t.Errorf("got %v", err)
	}
}

func TestNodeMajor(t *testing.T) {
	if n, err := nodeMajor("v20.19.2"); n != 20 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	if _, err := nodeMajor("none"); err == nil {
		t.Error("a text that is no version has no error")
	}
}

// The ratio under BullMQ is that of the first side by it, wherever it stands.
func TestRatiosBesideBullMQ(t *testing.T) {
	r := row{id: "x", sides: []side{{label: "a"}, {label: "b"}, {label: "bullmq", beside: true}}}
	got := r.report([][]sample{{{figRate: 8}}, {{figRate: 4}}, {{figRate: 1}}})
	if got.Ratios[figRate] != 2 || got.Sides[2].Ratios[figRate] != 8 {
		t.Errorf("got %+v", got)
	}
	got = r.report([][]sample{{{figRate: 8}}, nil, {{figRate: 1}}})
	var text strings.Builder
	got.writeSides(&text)
	if !strings.Contains(text.String(), "8.00×") {
		t.Errorf("without the second side, got:\n%s", text.String())
	}
}

// The lock file has the hash of each package, and no address.
func TestBullMQIsPinned(t *testing.T) {
	text, err := bullmqFiles.ReadFile("bullmq/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	var lock struct {
		Packages map[string]struct {
			Version, Resolved, Integrity string
			Dependencies                 map[string]string
		}
	}
	if err := json.Unmarshal(text, &lock); err != nil {
		t.Fatal(err)
	}
	for name, p := range lock.Packages {
		if p.Resolved != "" || name != "" && p.Integrity == "" {
			t.Errorf("%s: resolved %q, integrity %q", name, p.Resolved, p.Integrity)
		}
	}
	if version, err := bullmqVersion(); err != nil || version == "" || version != lock.Packages["node_modules/bullmq"].Version {
		t.Errorf("the report has version %q, %v", version, err)
	}
	for name, version := range lock.Packages[""].Dependencies {
		if locked := lock.Packages["node_modules/"+name].Version; locked != version {
			t.Errorf("package.json wants %s %s, and the lock file has %q", name, version, locked)
		}
	}
}

// hangingBullMQ is a package whose calls never return.
const hangingBullMQ = `export class Queue {
  on() {}
  add() { return new Promise((resolve) => setTimeout(resolve, 1e9)); }
}`

// startHanging starts a child with that package in place of BullMQ.
func startHanging(t *testing.T, ctx context.Context) *bullmqChild {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("needs Node")
	}
	dir := t.TempDir()
	if err := unpackBullMQ(dir); err != nil {
		t.Fatal(err)
	}
	fake := filepath.Join(dir, "node_modules", "bullmq")
	if err := os.MkdirAll(fake, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"package.json": `{"type": "module", "exports": "./index.js"}`, "index.js": hangingBullMQ} {
		if err := os.WriteFile(filepath.Join(fake, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := startChild(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	if got, err := c.do(request{Do: "hello"}); err != nil || got.Node == "" {
		t.Fatalf("got %+v, %v", got, err)
	}
	if _, err := c.do(request{Do: "open", Connect: &connect{}}); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask sends a request that the child cannot end.
func (c *bullmqChild) ask(t *testing.T, within time.Duration) {
	t.Helper()
	r := request{Do: "add", Topic: topic, Callers: 1, N: 1, Size: payloadSize, Within: within.Milliseconds()}
	if err := json.NewEncoder(c.stdin).Encode(r); err != nil {
		t.Fatal(err)
	}
}

// A child ends when its stdin does, as it does if the benchmark ends in any
// way, also in the middle of a request.
func TestChildEndsWithTheBench(t *testing.T) {
	c := startHanging(t, t.Context())
	c.ask(t, time.Hour)
	if err := c.close(); err != nil {
		t.Error(err)
	}
	if c.cmd.ProcessState == nil || !c.cmd.ProcessState.Exited() {
		t.Errorf("it has not ended by itself: %v", c.cmd.ProcessState)
	}
}

// A child is killed when the run is cancelled.
func TestChildEndsWithTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := startHanging(t, ctx)
	c.ask(t, time.Hour)
	cancel()
	if err := c.cmd.Wait(); err == nil {
		t.Error("it has ended without an error")
	}
}

// A child ends when a request takes longer than it may.
func TestChildIsBounded(t *testing.T) {
	c := startHanging(t, t.Context())
	c.ask(t, time.Millisecond)
	if err := c.out.Decode(&reply{}); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end of its answers", err)
	}
	var exit *exec.ExitError
	if err := c.cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("got %v", err)
	}
}

// A child tells what is wrong.
func TestChildRefuses(t *testing.T) {
	c := startHanging(t, t.Context())
	for want, r := range map[string]request{
		"unknown request fly": {Do: "fly"},
		"more than 10000000":  {Do: "add", N: 10_000_001},
	} {
		if _, err := c.do(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
}

func TestSpansAndInstants(t *testing.T) {
	at := time.UnixMicro(1_700_000_000_123_456)
	if got := instantOf(instant(at)); !got.Equal(at) {
		t.Errorf("got %v, want %v", got, at)
	}
	got := spansOf([]float64{2.5, -1})
	if got[0] != -time.Millisecond || got[1] != 2500*time.Microsecond {
		t.Errorf("got %v", got)
	}
}
