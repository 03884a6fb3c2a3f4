// Package example_test runs the examples and checks what they print.
package example_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
)

// outputs is what each example prints. N stands for any number.
var outputs = map[string]string{
	"quickstart": `
		enqueue hello, due in 1s
		enqueue flaky, due in 500ms
		enqueue unwanted, due in 1.5s
		enqueue patient, due in 1h0m0s
		cancel unwanted, which was scheduled
		reschedule patient, due in 2.5s

		due at started at lateness
		N ms N ms N ms flaky, attempt 1
		N ms N ms N ms hello, attempt 1
		N ms N ms N ms flaky, attempt 2
		N ms N ms N ms patient, attempt 1`,
	"order": `
		order-1 is placed, cups in stock: 9
		order-2 is placed, cups in stock: 8
		order-2 is paid, its job was scheduled
		order-1 is cancelled, cups in stock: 9
		order-1 cannot be paid any more`,
	"batch": `
		document-700 is refused: empty document
		10 requests, of 100 to 100 documents
		one more, of 1`,
	"api": `
		with holds: 12 invoices sent, some were refused before: true
		with a rate: 8 invoices sent, some were refused before: false`,
	"tenants": `
		ant has 5 ready jobs, and the weight 1
		bee has 5 ready jobs, and the weight 1
		cat has 5 ready jobs, and the weight 2
		whale has 2000 ready jobs, and the weight 1
		the small tenants were done within 100 starts: true
		the whale was done at last: true`,
	"pools": `
		one of each topic at least, of 60: true
		critical: about 6 of 10
		default: about 3 of 10
		low: about 1 of 10`,
	"reminders": `
		day 23 0s anna: remind, attempt 1
		day 23 1h0m0s ben: remind, attempt 1
		day 28 2s anna: remind, attempt 2
		day 28 1h0m2s ben: remind, attempt 2
		day 29 0s anna: remind, attempt 1
		day 29 1h0m0s ben: remind, attempt 1
		day 30 0s anna: expire, attempt 1
		day 30 1h0m0s ben: expire, attempt 1
		day 30 21h0m0s anna: undo at stage 5 of 5
		day 31 1h0m0s ben: purge, attempt 1
		day 53 21h0m0s anna: remind, attempt 1`,
	"debounce": `
		20 s: index version 10
		waits with version 14, because of debounce
		31 s: index version 14
		36 s: index version 15`,
	"unique": `
		place mug
		pay mug: its timeout was scheduled
		pay cup: no timeout, and none will come
		place cup: refused
		place jar
		cancel jar
		digest anna
		send the digest of anna
		digest anna: refused
		digest anna
		send the digest of anna`,
	"graceful": `
		first server: begin short, attempt 1
		first server: begin long, attempt 1
		the signal comes
		first server: end short
		first server: give back long: delayq: server is shutting down
		first server: stopped
		second server: begin long, attempt 1
		second server: end long`,
	"again": `
		day 1, attempt 1: ann gets [a new shop]
		day 2, attempt 1: the mail server is down
		day 2, attempt 2: ann gets [a fair, rain]
		day 3, attempt 1: ann gets []
		day 4, attempt 1: ann gets [sun]
		4 jobs were enqueued, 3 of them by the one before`,
	"cron": `
		run poll
		run poll
		run report by hand
		poll is paused: every 2s, 2 slots fired
		report is waiting: cron 0 9 * * 1-5 Europe/Berlin, 0 slots fired
		run poll
		poll, 0 from the end: attempt 1 acked
		poll, 1 from the end: attempt 1 acked
		poll, 2 from the end: attempt 1 acked
		report, 0 from the end: attempt 1 acked`,
	"call": `
		first: 1 of 2: read the orders of anna
		second: 1 of 2: read the orders of anna
		first: 2 pages about anna, attempt 1
		second: 2 pages about anna, attempt 1
		failed: no such customer
		the caller gave up: true, the job is scheduled`,
	"flow": `
		2 of 5, 0 failed
		3 of 5, 1 failed
		4 of 5, 1 failed
		publish album-7
		album-7/sea.jpg done sea.jpg.webp
		album-7 done cover of sea.jpg.webp
		album-7/torn.jpg dead  unexpected end of the image
		album-7/hut.jpg done hut.jpg.webp
		album-7/cat.jpg done cat.jpg.webp`,
	"saga": `
		anna, attempt 1
		book a flight, known: false
		book a room, known: false
		anna, attempt 2
		book a room, known: true
		book a car, known: false
		ben, attempt 1
		book a flight, known: false
		book a room, known: false
		ben, attempt 2
		book a room, known: true
		book a car, known: false
		undo the room, known: false
		ben, attempt 3
		undo the room, known: true
		undo the flight, known: false
		ben is dead: car: refused, saved ["flight" "room" "car" "undo room" "undo flight"]`,
	"poll": `
		ask about refund-7, attempt 1: pending
		ask about refund-7, attempt 1: pending
		ask about refund-7, attempt 1: the bank does not answer
		ask about refund-7, attempt 2: pending
		ask about refund-7, attempt 2: settled
		refund-7 is done after 2 attempts`,
}

func TestExamples(t *testing.T) {
	sources, err := filepath.Glob("*/main.go")
	require.NoError(t, err)
	sources = slices.DeleteFunc(sources, func(source string) bool {
		// tutorial takes arguments, readme wants a Redis, and observe, orms, shop and tasks are
		// modules. These have tests of their own.
		return slices.Contains([]string{"tutorial", "readme", "observe", "orms", "shop", "tasks"}, filepath.Dir(source))
	})
	require.Len(t, outputs, len(sources), "every example has an output")

	for _, source := range sources {
		name := filepath.Dir(source)
		t.Run(name, func(t *testing.T) {
			t.Parallel() // an example mostly waits
			text, err := os.ReadFile(source)
			require.NoError(t, err)
			require.LessOrEqual(t, bytes.Count(text, []byte("\n")), 90, "an example is short")

			// Not go build: go run keeps the program in the build cache, so that only the first
			// time is slow.
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			var out, log bytes.Buffer
			run := exec.CommandContext(ctx, "go", "run", "./"+name)
			run.Env = append(os.Environ(), "REDIS_URL=")
			run.Stdout, run.Stderr = &out, &log
			run.WaitDelay = time.Second // the program outlives a go run that is killed, but it ends by itself
			require.NoError(t, run.Run(), "%s%s", &out, &log)
			require.Equal(t, normal(outputs[name]), normal(measured.ReplaceAllString(out.String(), "N ms")))
		})
	}
}

// The program in README.md compiles as it stands when it is pasted into a file, and runs. Only the
// address of the Redis is replaced for the run, because nobody knows what listens on that one.
func TestReadmeProgram(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	program := regexp.MustCompile("(?s)\n```go\n(package main\n.*?)```\n").FindSubmatch(text)
	require.NotNil(t, program, "README.md has a whole program")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()

	address := []byte("localhost:6379")
	require.Equal(t, 1, bytes.Count(program[1], address))
	here := bytes.Replace(program[1], address, []byte(miniredis.RunT(t).Addr()), 1)
	main := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(main, here, 0o600))
	run := exec.CommandContext(ctx, "go", "run", main)
	var log bytes.Buffer
	run.Stderr, run.WaitDelay = &log, time.Second
	out, err := run.Output()
	require.NoError(t, err, "%s%s", out, &log)
	require.Equal(t, "cancelling order cup\n", string(out))
	require.Contains(t, string(text), "\n```text\n"+string(out)+"```\n", "README.md says what it prints")
}

// measured matches what is different in every run.
var measured = regexp.MustCompile(`\d+ ms`)

// normal is a text without indentation, alignment and blank lines.
func normal(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 0 {
			lines = append(lines, strings.Join(words, " "))
		}
	}
	return strings.Join(lines, "\n")
}
