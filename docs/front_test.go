package docs_test

import (
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tests in this file hold what a stranger reads first: it is short, each word leads to its
// page, and what it says of other projects has a version and a date.

// A stranger reads README.md in five minutes.
func TestReadmeIsShort(t *testing.T) {
	require.LessOrEqual(t, len(strings.Fields(proseFile(t, "README.md"))), 1200, "words of README.md: move something to docs/")
}

// README.md has two commands that do everything on a fresh machine with only Go, and the first one
// runs the main job.
func TestReadmeBeginsWithTwoCommands(t *testing.T) {
	_, after, found := strings.Cut(proseFile(t, "README.md"), "\n```\n")
	require.True(t, found)
	block, _, _ := strings.Cut(after, "\n```\n")
	require.Equal(t, []string{
		"git clone https://github.com/delayq/delayq && cd delayq", "go run ./example/quickstart", "go test ./...",
	}, strings.Split(block, "\n"))
}

// soughtWords are what people who know other queues look for. Each has a row in docs/words.md.
var soughtWords = []string{
	"at least once", "backoff", "batch", "cancel", "chain", "cluster", "cron", "dashboard", "dead letter", "debounce",
	"delay", "exactly once", "fan-out", "gateway", "heartbeat", "idempotent", "lease", "metrics", "migrate", "outbox", "pause",
	"priority", "progress", "rate limit", "reschedule", "result", "retry", "sentinel", "throttle", "tracing",
	"transaction", "unique", "webhook", "workflow",
}

var wordRow = regexp.MustCompile(`(?m)^\| ([^|]+) \| [^|]+ \| \[[^]]+\]\(([^)]+)\) \|$`)

// Each word that people look for is two clicks from README.md and from docs/README.md: they link to
// docs/words.md, and its row links to a page that has the word.
func TestWordsLeadToTheirPages(t *testing.T) {
	require.Contains(t, proseFile(t, "README.md"), "](docs/words.md)")
	require.Contains(t, proseFile(t, "docs/README.md"), "](words.md)")
	text := proseFile(t, "docs/words.md")
	rows := wordRow.FindAllStringSubmatch(text, -1)
	require.Len(t, rows, strings.Count(text, "\n| ")-2, "each row but the head and the rule has a page")

	plain := func(text string) string {
		return strings.Join(strings.Fields(strings.NewReplacer("-", " ", "`", "", "*", "").Replace(strings.ToLower(text))), " ")
	}
	var words []string
	for _, row := range rows {
		words = append(words, strings.Split(row[1], ", ")...)
		page, _, _ := strings.Cut(row[2], "#")
		body := plain(proseFile(t, path.Join("docs", page)))
		for _, word := range strings.Split(row[1], ", ") {
			require.Contains(t, body, plain(word), "docs/%s does not have the word that leads to it", page)
		}
	}
	require.True(t, slices.IsSortedFunc(rows, func(a, b []string) int {
		return strings.Compare(strings.ToLower(a[1]), strings.ToLower(b[1]))
	}), "words in alphabetical order")
	require.GreaterOrEqual(t, len(soughtWords), 30)
	for _, word := range soughtWords {
		require.Contains(t, words, word, "docs/words.md")
	}
}

// Every page for users is in docs/README.md, so that no page is an orphan.
func TestPagesAreInTheIndex(t *testing.T) {
	index := proseFile(t, "docs/README.md")
	for _, pattern := range []string{"docs/*.md", "docs/howto/*.md"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			if name := strings.TrimPrefix(file, "docs/"); name != "README.md" {
				require.Contains(t, index, "]("+name, "docs/README.md")
			}
		}
	}
}

// docs/comparison.md names the versions of other projects that the benchmark measures, and the day
// of the last look at them. A release asks for a new look: see CONTRIBUTING.md.
func TestVersionsOfOtherProjects(t *testing.T) {
	text := proseFile(t, "docs/comparison.md")
	module := func(file, pattern string) string {
		m := regexp.MustCompile(pattern).FindStringSubmatch(proseFile(t, file))
		require.Len(t, m, 2, file)
		return m[1]
	}
	asynq := module("bench/go.mod", `hibiken/asynq v([\d.]+)`)
	river := module("bench/go.mod", `riverqueue/river v([\d.]+)`)
	bullmq := module("bench/bullmq/package.json", `"bullmq": "([\d.]+)"`)
	require.Contains(t, text, "asynq "+asynq+" | River "+river+" | BullMQ "+bullmq+" |", "the head of the table")
	require.Contains(t, strings.Join(strings.Fields(text), " "), "asynq "+asynq+", River "+river+" and BullMQ "+bullmq)
	require.Regexp(t, `\*\*Checked on \d{4}-\d\d-\d\d\*\*`, text)

	_, dates, found := strings.Cut(text, "\n## Versions of other tables\n")
	require.True(t, found)
	dates, _, _ = strings.Cut(dates, "\n## ")
	pages, err := filepath.Glob("docs/howto/*.md")
	require.NoError(t, err)
	others := 0
	for _, page := range pages {
		if strings.Contains(proseFile(t, page), "\n| elsewhere |") {
			others++
			require.Regexp(t, `\(`+strings.TrimPrefix(page, "docs/")+`\) \| \d{4}-\d\d-\d\d \|`, dates, "the table of %s was checked on", page)
		}
	}
	require.Equal(t, strings.Count(dates, "](howto/"), others, "pages in the table of dates, and pages with such a table")
}

// The figures in docs/comparison.md are rows of the table of results in bench/README.md.
func TestProseFiguresAreResults(t *testing.T) {
	_, after, _ := strings.Cut(proseFile(t, "docs/comparison.md"), "\n## Figures\n")
	section, _, _ := strings.Cut(after, "\n## ")
	_, after, _ = strings.Cut(proseFile(t, "bench/README.md"), "\n## Results\n")
	results, _, _ := strings.Cut(after, "\n## ")
	rows := 0
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "| ") {
			require.Contains(t, results, line)
			rows++
		}
	}
	require.Equal(t, 2+4, rows, "a head, a rule and four figures")
	conditions, _, found := strings.Cut(section, ".\n\n|")
	require.True(t, found)
	require.Contains(t, strings.Join(strings.Fields(results), " "), strings.Join(strings.Fields(conditions), " "))
}

// A benchCell is a number in a table of bench/README.md: that of a cell in the row that begins with
// some text, counted from one. A rate in percent before it is another number.
type benchCell struct {
	row       string
	cell, nth int
}

// What the text of documents says of the benchmark is what its tables say. <> is the figure: a
// number of a table, or one by another.
func TestProseRatiosAreThoseOfTheBenchmark(t *testing.T) {
	alone, large := "[enqueue/1](#enqueue1) | 13", "payload/100KiB/"
	for _, f := range []struct {
		document, words string
		of, by          benchCell
	}{
		{"README.md", "ready backlog runs <> times as fast", benchCell{"run a ready backlog, 64", 4, 1}, benchCell{}},
		{"README.md", "a single goroutine enqueues <> times as fast", benchCell{"enqueue, 1 goroutine", 4, 1}, benchCell{}},
		{"docs/comparison.md", "A single goroutine enqueues <> times as", benchCell{"enqueue, 1 goroutine", 4, 1}, benchCell{}},
		{"docs/comparison.md", "beside other work, it was <> times", benchCell{alone, 2, 1}, benchCell{alone, 3, 1}},
		{"docs/comparison.md", "of 100 KiB are enqueued at <> to", benchCell{large + "bulk", 2, 1}, benchCell{large + "bulk", 3, 1}},
		{"docs/comparison.md", "are enqueued at 0.90 to <> times", benchCell{large + "enqueue/64", 2, 1}, benchCell{large + "enqueue/64", 3, 1}},
		{"docs/comparison.md", "`Apply` cancels jobs at <> times", benchCell{"[apply/few]", 2, 1}, benchCell{"[apply/few]", 3, 1}},
		{"docs/comparison.md", "clients of Redis meanwhile: <> ms for", benchCell{"apply/few: longest", 3, 1}, benchCell{}},
		{"docs/comparison.md", "longest script of `Apply` takes <> ms", benchCell{"apply/few: longest", 2, 1}, benchCell{}},
		{"docs/comparison.md", "with a burst of one costs Redis <> times", benchCell{"[rate/1000/burst1]", 2, 2}, benchCell{"rate/1000 |", 4, 2}},
		{"docs/comparison.md", "lets up to <> jobs start in one second", benchCell{"rate/1000, /5000: worst", 4, 1}, benchCell{}},
		{"docs/comparison.md", "Single calls set schedules at <> times", benchCell{"schedules/set/64", 2, 1}, benchCell{"schedules/set/64", 4, 1}},
		{"docs/comparison.md", "`ScheduleBatch` is <> times as fast", benchCell{"schedules/set |", 2, 1}, benchCell{"schedules/set |", 4, 1}},
	} {
		words := strings.ReplaceAll(regexp.QuoteMeta(f.words), "<>", `([\d.,]*\d)`)
		m := regexp.MustCompile(strings.ReplaceAll(words, " ", `\s+`)).FindStringSubmatch(proseFile(t, f.document))
		require.Len(t, m, 2, "%s: %s", f.document, f.words)
		want := f.of.number(t)
		if f.by.row != "" {
			want /= f.by.number(t)
		}
		said := strings.ReplaceAll(m[1], ",", "")
		_, digits, _ := strings.Cut(said, ".")
		require.Equal(t, strconv.FormatFloat(want, 'f', len(digits), 64), said, "%s: %s", f.document, f.words)
	}
}

func (c benchCell) number(t *testing.T) float64 {
	t.Helper()
	_, after, found := strings.Cut(proseFile(t, "bench/README.md"), "\n| "+c.row)
	require.True(t, found, c.row)
	line, _, _ := strings.Cut(c.row+after, "\n")
	cell := strings.Split(line, "|")[c.cell-1]
	numbers := regexp.MustCompile(`\d[\d,]*(?:\.\d+)?`).FindAllString(cell, -1)
	require.GreaterOrEqual(t, len(numbers), c.nth, "%s: %s", c.row, cell)
	return must(strconv.ParseFloat(strings.ReplaceAll(numbers[c.nth-1], ",", ""), 64))
}
