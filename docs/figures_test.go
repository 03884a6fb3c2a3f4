package docs_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/doctor"
	"github.com/delayq/delayq/internal/fire"
	"github.com/delayq/delayq/internal/listen"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/schedule"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
	"github.com/delayq/delayq/internal/settle"
	"github.com/delayq/delayq/internal/workers"
)

// A size is a number of bytes in a document.
type size int64

// A proseFigure is a figure that a document repeats. Around it are the words of the document, any
// white space between them; <> stands for the figure: a number or a numeral, with a unit if value
// is a time.Duration or a size.
type proseFigure struct {
	document, words string
	value           any
}

// proseFigures is the one place in which figures of documents are tied to what they are figures of.
// The defaults of options are in TestProseDefaultsAreTheRealOnes.
func proseFigures(t *testing.T) []proseFigure {
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	first, last := ms(number(t, "defaultRun.BackoffMin")), ms(number(t, "defaultRun.BackoffMax"))
	receipt := ms(luaNumber(t, "prelude/receipt", `receipt_ms = '(\d+)'`))
	for _, name := range []string{"prelude/lone_end", "enqueue_later", "enqueue_now"} {
		require.Equal(t, receipt, ms(luaNumber(t, name, `'PX', '(\d+)'`)), "receipts of all scripts are kept as long")
	}
	for _, name := range []string{"enqueue_later", "enqueue_now"} {
		require.Equal(t, luaNumber(t, "prelude/sizes", `bytes > (\d+)`), luaNumber(t, name, `#record > (\d+)`), "larger records are noted")
	}
	require.Equal(t, span(t, "maxTick"), ms(luaNumber(t, "enqueue_later", `due - now <= (\d+) then`)), "as far ahead as timers look")
	require.Equal(t, span(t, "maxTick"), ms(luaNumber(t, "enqueue_later", `wake\(bucket, due \+ 0, (\d+),`)), "as far ahead as timers look")
	lostFirst := ms(luaNumber(t, "promote", `step = (\d+) \* 2 \^ math\.max\(1,`)) * 2
	lostLast := lostFirst / 2 << luaNumber(t, "promote", `math\.min\([^()]*, (\d+)\)\)`)
	anchor := 25 * luaNumber(t, "prelude/lease", `string\.rep\('-', (\d+)\)`)
	history := luaNumber(t, "prelude/history", `runs_most = (\d+)`)
	day := 24 * time.Hour
	tick, pauses, deadCount := span(t, "maxTick"), number(t, "maxPauses"), number(t, "defaultServer.deadCount")
	deadDays, largestPayload := int(span(t, "defaultServer.deadAge")/day), size(number(t, "mostPayload"))

	return []proseFigure{
		{"README.md", "the job runs again: in <>, 4 s, 8 s", first},
		{"docs/features.md", "Redis holds wire format <>,", record.Version},
		{"docs/features.md", "and format <> for jobs with a key", record.VersionKeyed},
		{"docs/features.md", "after <>, 4 s and so on up to", first},
		{"docs/features.md", "and so on up to <> with jitter", last},
		{"docs/features.md", "| up to <> of any bytes; an empty one is replaced", size(script.MaxIDLen)},
		{"docs/features.md", "| Topic, prefix | up to <> of UTF-8", size(script.MaxTopicLen)},
		{"docs/features.md", "| up to <> of any bytes by default (`MaxPayload`", size(number(t, "defaultClient.maxPayload"))},
		{"docs/features.md", "(`MaxPayload`: up to <>)", largestPayload},
		{"docs/features.md", "| Headers | up to <> for each job", size(script.MaxHeaderLen)},
		{"docs/features.md", "| Delay | up to <> years", int(span(t, "maxDelay") / (365 * day))},
		{"docs/features.md", "no due time after the year <> |", time.UnixMilli(number(t, "maxDueMS")).UTC().Year()},
		{"docs/features.md", "| unlimited, or up to <> |", number(t, "maxRetry")},
		{"README.md", "has more than <> of them or after", deadCount},
		{"README.md", "of them or after <> days (`DeadLimit`)", deadDays},
		{"docs/howto/cron.md", "`Runs` lists the last <> runs", history},

		{"docs/howto/retries.md", "and the longest one | <> and 4096 s", first},
		{"docs/howto/retries.md", "and the longest one | 2 s and <> |", last},
		{"docs/howto/retries.md", "the last of 25 retries comes <> after the first failure", backoffs(25).Truncate(time.Hour)},
		{"docs/howto/delay.md", "A delay has up to <> years.", int(span(t, "maxDelay") / (365 * day))},
		{"docs/delivery.md", "while its lease holds: <> by default", span(t, "defaultServer.lease")},

		{"docs/howto/dead-jobs.md", "by count and age: <> jobs", deadCount},
		{"docs/howto/dead-jobs.md", "jobs and <> days by default", deadDays},
		{"docs/howto/stopping-under-kubernetes.md", "The default `Drain` of <> suits", span(t, "defaultServer.drain")},
		{"docs/howto/stopping-under-kubernetes.md", "leases run out, after <> by default", span(t, "defaultServer.lease")},
		{"docs/tutorial.md", "for the handler, up to <> by default", span(t, "defaultServer.drain")},

		{"*.go", "Range: 1 byte to <>.", largestPayload},

		{"docs/design.md", "each expires after <> (", receipt},
		{"docs/design.md", "delay doubles from <> to", first},
		{"docs/design.md", "delay doubles from 2 s to <>. Up to", last},
		{"docs/design.md", "backoff doubles from <> to", lostFirst},
		{"docs/design.md", "backoff doubles from 2 s to <>, and the jobs", lostLast},
		{"docs/design.md", "cut off again backs off, from <> to", lostFirst},
		{"docs/design.md", "cut off again backs off, from 2 s to <>", lostLast},
		{"docs/design.md", "will be started within <>,", workers.AheadTime},
		{"docs/design.md", "worker becomes free for <>.", workers.AheadPatience},
		{"docs/design.md", "a tick of <>.", tick},
		{"docs/design.md", "a second flight starts when <> wait", commit.SecondFlight},
		{"docs/design.md", "one flight for each <> of a flight's time", commit.PerFlight},
		{"docs/design.md", "depend on the number of its jobs, up to <> and", commit.MostFlights},
		{"docs/design.md", "when <> wait, a second call goes beside the first", settle.Pile},
		{"docs/design.md", "a server of more than <> topics waits for *rings*", serve.MostBlocked},
		{"docs/design.md", "Every <> each server prunes", serve.PruneEvery},
		{"docs/design.md", "something to prune, up to <> topics in a call", serve.WatchLimit},
		{"docs/design.md", "each topic is pruned once <> anyway", serve.PruneAll},
		{"docs/design.md", "if the next one has come, or after <>.", schedule.MissedAfter},

		{"docs/operations.md", "A record carries a format version: <>, or 2 if", record.Version},
		{"docs/operations.md", "A record carries a format version: 1, or <> if the job has a key", record.VersionKeyed},
		{"docs/operations.md", "and 5 or <> if it is a step of a flow", record.MaxVersion},
		{"docs/README.md", "get a board, <> alerts", alerts(t)},
		{"docs/howto/monitoring.md", "has a Grafana board, <> alerts for Prometheus", alerts(t)},
		{"docs/features.md", "**[Grafana board and <> alerts]", alerts(t)},
		{"docs/features.md", "whose last retry is <> after the first failure", backoffs(25).Truncate(time.Hour)},
		{"*.go", "default [Backoff] the last retry is <> after the first failure", backoffs(25).Truncate(time.Hour)},
		{"*.go", "[Backoff] that is <> after the first attempt", backoffs(decodeAttempts(t) - 1).Truncate(time.Minute)},
		{"*.go", "After <> attempts it is buried", decodeAttempts(t)},

		{"docs/operations.md", "server is missing in `Servers` after <>.", serve.HeartbeatStale},
		{"docs/operations.md", "`DeadLimit`. Default: <> and", deadCount},
		{"docs/operations.md", "There can be <> at the same time", pauses},
		{"docs/reliability.md", "over the `DeadLimit` of any server (<>", deadCount},
		{"*.go", "when <> others have paused", pauses},
		{"*.go", "the topic already has <> pauses", pauses},
		{"*.go", "At most <> of each", serve.PruneLimit},
		{"*.go", "can have <> pauses simultaneously", pauses},
		{"docs/operations.md", "has up to <> entries in its error log", record.MaxFailures},
		{"docs/operations.md", "at the next prune, at most <> later.", serve.PruneEvery + tick},
		{"docs/operations.md", "but not twice within <>.", serve.CheckAgain - serve.CheckAgain/10},
		{"docs/operations.md", "begins its first round <> after its start,", serve.CheckFirst},
		{"docs/reliability.md", "by two looks, <> apart,", serve.GuardEvery},
		{"docs/reliability.md", "from <> after its start on,", serve.GuardAge},
		{"docs/operations.md", "each further round <> after the beginning of the last one.", serve.CheckEvery},
		{"docs/operations.md", "in good health, for <> or until", serve.CheckTrust},
		{"docs/operations.md", "calls of about <> simple commands each", doctor.SliceWork},
		{"docs/operations.md", "or for <> of records.", size(doctor.SliceBytes)},
		{"docs/operations.md", "for <> IDs in ready,", doctor.WalkLimit},
		{"docs/operations.md", "between these calls: at most <> calls a second", int(time.Second / serve.CheckPause)},
		{"docs/operations.md", "the key expires after <> (", serve.CheckEvery - serve.CheckEvery/10},
		{"docs/operations.md", "(<> after an alarm)", serve.CheckAgain - serve.CheckAgain/10},
		{"docs/operations.md", "takes over, after up to <> in all.", 2 * serve.CheckEvery},
		{"docs/operations.md", "puts it off, for <> at first", serve.LaterFirst},
		{"docs/operations.md", "and later for up to <>, without", serve.LaterMost},
		{"docs/operations.md", "if it has met none for <>.", serve.LaterMemory},
		{"docs/operations.md", "before it could be fired, or <> has gone by", schedule.MissedAfter},
		{"docs/operations.md", "one line for all schedules of a topic, and one <> at most.", fire.MissedEvery},
		{"docs/operations.md", "are counted up to <> for each gap", schedule.MissedCount},
		{"docs/operations.md", "`watch` once a tick, for up to <> topics", serve.WatchLimit},
		{"docs/operations.md", "`survey` every <>, for up to", serve.PruneEvery},
		{"docs/operations.md", "`survey` every 10 s, for up to <> topics", serve.WatchLimit},
		{"docs/operations.md", "Each topic is also pruned once <>.", serve.PruneAll},
		{"docs/operations.md", "`heartbeat` every <>.", serve.HeartbeatEvery},
		{"docs/operations.md", "`chronicle` every <>, for each topic", serve.HistoryEvery},
		{"docs/operations.md", "[costs](#history) a call every <> and about", serve.HistoryEvery},
		{"docs/protocol.md", "Call **chronicle** every <> for each", serve.HistoryEvery},
		{"docs/protocol.md", "the same number of its series for at most <>, and then", serve.HistoryPatience},
		{"docs/operations.md", "A server with at most <> topics waits", serve.MostBlocked},
		{"docs/operations.md", "which it repeats every <>, and", serve.WaitTimeout},
		{"docs/operations.md", "and prunes each topic every <>.", serve.PruneEvery},
		{"docs/operations.md", "have room for <> connections to each", serve.MostCalls(1000) + serve.OtherCalls + serve.MostTakes(1000) + 2*serve.MostBlocked},
		{"docs/howto/many-topics.md", "and mostly within <>.", serve.FollowEvery},
		{"docs/howto/many-topics.md", "topics of a pattern, <> by default.", number(t, "defaultMaxTopics")},
		{"docs/howto/many-topics.md", "Within <>, servers end the work", serve.FollowAll},
		{"docs/operations.md", "**One call of a server** takes at most <>,", serve.CallTimeout},
		{"docs/operations.md", "waits for a job, lasts <> in Redis.", serve.WaitTimeout},
		{"docs/operations.md", "Without a reply after <> the server", serve.WaitTimeout + serve.WaitMargin},
		{"docs/operations.md", "**A silent control channel** is tested after <>.", listen.Silence},
		{"docs/operations.md", "by default every <> to 82 minutes.", int(last / time.Minute)},
		{"docs/operations.md", "by default every 68 to <>.", time.Duration(math.Ceil((last * 6 / 5).Minutes())) * time.Minute},
		{"docs/operations.md", "Jobs that had earlier attempts wait <> to", lostFirst},
		{"docs/operations.md", "earlier attempts wait 2 s to <> longer.", lostLast},
		{"docs/operations.md", "not possible; <> is the maximum.", tick},
		{"docs/operations.md", "below the tick, `take` below <> unless", serve.WaitTimeout},

		{"docs/protocol.md", "Topics and prefixes have 1 to <> of valid UTF-8", size(script.MaxTopicLen)},
		{"docs/protocol.md", "Job IDs have 1 to <> of any kind", size(script.MaxIDLen)},
		{"docs/protocol.md", "of a series; expires after <>, that of an [outbox]", receipt},
		{"docs/protocol.md", "that of an [outbox](#rows-of-an-outbox) after <> |", commit.RowsReceipt},
		{"docs/protocol.md", "`[1 0 …]`. It expires after <>.", serve.CheckTrust},
		{"docs/protocol.md", "The receipt is kept for <>.", receipt},
		{"docs/protocol.md", "a member of <> hyphens", anchor},
		{"docs/protocol.md", "1 ≤ min ≤ max ≤ <>; 0, 0", span(t, "maxDelay").Milliseconds()},
		{"docs/protocol.md", "any bytes; together at most <> |", size(script.MaxHeaderLen)},
		{"docs/protocol.md", "has met the first such job, from <> to", serve.LaterFirst},
		{"docs/protocol.md", "such job, from 1 s to <>. No", serve.LaterMost},
		{"docs/protocol.md", "The log holds the first entry and the newest <>.", record.MaxFailures - 1},
		{"docs/protocol.md", "| message | string | at most <> |", size(record.MaxMessage)},
		{"docs/protocol.md", "of a panic or a goexit, at most <> |", size(record.MaxStack)},
		{"docs/protocol.md", "| error | string | at most <> |", size(record.MaxRunError)},
		{"docs/protocol.md", "The output is any bytes, at most <>.", size(record.MaxOutput)},
		{"docs/protocol.md", "the result that a step has saved, at most <> |", size(record.MaxStepResult)},
		{"docs/protocol.md", "The text has at most <>. The scripts", size(record.MaxProgressText)},
		{"docs/protocol.md", "netstrings of the names of at most <>", record.MaxSteps},
		{"docs/protocol.md", "A name has 1 to <> of valid UTF-8 without", size(record.MaxStepName)},
		{"running.go", "text has at most <> of valid UTF-8.", size(record.MaxProgressText)},
		{"running.go", "It has at most <>. f's own value", size(record.MaxStepResult)},
		{"running.go", "A job has at most <> steps.", record.MaxSteps},
		{"running.go", "A name has 1 to <> of valid UTF-8", size(record.MaxStepName)},
		{"job.go", "[Job.SetOutput] accepts: <>.", size(record.MaxOutput)},
		{"docs/protocol.md", "in base64, at most <> of them", size(record.MaxRunOutput)},
		{"docs/protocol.md", "`<name>\\n<n modulo <>>`", history},
		{"docs/protocol.md", "So there are the newest <>.", history},
		{"docs/protocol.md", "A server writes one every <> and", serve.HeartbeatEvery},
		{"docs/protocol.md", "Without one for <> a server counts as dead", serve.HeartbeatStale},
		{"docs/protocol.md", "removes such entries, once <>.", serve.SweepEvery},
		{"docs/protocol.md", "absent: none was larger than <> bytes.", luaNumber(t, "prelude/sizes", `if bytes > (\d+) then`)},
		{"docs/protocol.md", "a backoff of <> to", number(t, "defaultRun.BackoffMin")},
		{"docs/protocol.md", "a backoff of 2,000 to <> ms, no timeout", number(t, "defaultRun.BackoffMax")},
		{"docs/protocol.md", "as by cancel, in up to <> cases a call", luaNumber(t, "replace", `searched < (\d+)`)},
		{"docs/protocol.md", "how many pauses there may be at the same time: <>.", pauses},
		{"docs/protocol.md", "copied: send no more than about <> of them", size(script.CallBytes)},
		{"docs/protocol.md", "since the last revival) s, from <> to", lostFirst},
		{"docs/protocol.md", "since the last revival) s, from 2 s to <>,", lostLast},
		{"docs/protocol.md", "with `heal` once a tick (<>), and", tick},
		{"docs/protocol.md", "A server with at most <> topics calls", serve.MostBlocked},
		{"docs/protocol.md", "When that happens twice within <>, this library", serve.BypassWindow},
		{"docs/protocol.md", "that topic with `BLMOVE` for <>. It does", serve.BypassPeriod},
		{"docs/protocol.md", "It does so for at most <> topics at a time.", serve.MostBlocked},
		{"docs/protocol.md", "wait for rings, at most <> in a call.", serve.WatchLimit},
		{"docs/protocol.md", "**The survey.** Every <>, call **survey**", serve.PruneEvery},
		{"docs/protocol.md", "Prune every topic once <>, whatever", serve.PruneAll},
		{"docs/protocol.md", "With at most <> topics, prune all", serve.MostBlocked},
		{"docs/protocol.md", "that one is if it is more than <> late", schedule.MissedAfter},
		{"docs/protocol.md", "with **check** every <>, with more than", serve.CheckEvery},
		{"docs/protocol.md", "A check of every <> ends here", serve.CheckEvery},
		{"docs/protocol.md", "Send a **heartbeat** every <>,", serve.HeartbeatEvery},

		{"docs/security.md", "| its text, <> of it |", size(record.MaxMessage)},
		{"docs/security.md", "and the stack, <> of it |", size(record.MaxStack)},
	}
}

// alerts returns how many alerts there are for Prometheus.
func alerts(t *testing.T) int {
	return len(regexp.MustCompile(`(?m)^\s*- alert:`).FindAllString(proseFile(t, "deploy/delayq.rules.yml"), -1))
}

// decodeAttempts returns how often a typed topic tries to decode a payload.
func decodeAttempts(t *testing.T) int {
	m := regexp.MustCompile(`const decodeAttempts = (\d+)`).FindStringSubmatch(proseFile(t, "topic.go"))
	require.NotNil(t, m)
	return must(strconv.Atoi(m[1]))
}

// backoffs returns how long so many delays of the default backoff are together, without what is
// added at random.
func backoffs(retries int) (all time.Duration) {
	for step := 2 * time.Second; retries > 0; retries-- {
		all += step
		step = min(2*step, 4096*time.Second)
	}
	return all
}

func TestProseFiguresAreTheRealOnes(t *testing.T) {
	texts := map[string]string{}
	for _, f := range proseFigures(t) {
		if texts[f.document] == "" {
			text := strings.ReplaceAll(proseFile(t, f.document), "\n//", "\n") // of a comment
			texts[f.document] = strings.Join(strings.Fields(text), " ")
		}
		figure, unit := `([\d,.]*\d|[a-z]+)`, ""
		switch f.value.(type) {
		case time.Duration:
			unit = ` (ms|s|seconds?|minutes?|hours?|days?)`
		case size:
			unit = ` (bytes|KiB|MiB)`
		}
		words := regexp.QuoteMeta(f.words)
		require.Equal(t, 1, strings.Count(words, "<>"), "%s: %s", f.document, f.words)
		pattern := regexp.MustCompile(strings.Replace(words, "<>", figure+unit, 1))
		found := pattern.FindAllStringSubmatch(texts[f.document], -1)
		if len(found) == 0 {
			t.Errorf("%s does not say %q any more: it is to be found there, or to be left out here", f.document, f.words)
		}
		for _, m := range found {
			got, err := readFigure(m[1:])
			if err != nil {
				t.Errorf("%s: %q: %v", f.document, m[0], err)
			} else if want := figureOf(f.value); got != want {
				t.Errorf("%s: %q is %v, and really it is %v", f.document, m[0], got, want)
			}
		}
	}
}

// figureOf is a value as readFigure gives it: in nanoseconds or bytes, if it has a unit.
func figureOf(value any) float64 {
	switch v := value.(type) {
	case time.Duration:
		return float64(v)
	case size:
		return float64(v)
	case int64:
		return float64(v)
	default:
		return float64(v.(int))
	}
}

// numerals are those that the documents use.
var numerals = map[string]float64{
	"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
	"ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16, "twenty": 20, "fifty": 50, "hundred": 100,
}

// units are those of figures, in nanoseconds and bytes.
var units = map[string]float64{
	"ms": 1e6, "s": 1e9, "second": 1e9, "minute": 60e9, "hour": 3600e9, "day": 86400e9, "byte": 1, "KiB": 1 << 10, "MiB": 1 << 20,
}

// readFigure reads a number or a numeral, and a unit if there is one.
func readFigure(words []string) (float64, error) {
	n, ok := numerals[words[0]]
	if !ok {
		var err error
		if n, err = strconv.ParseFloat(strings.ReplaceAll(words[0], ",", ""), 64); err != nil {
			return 0, fmt.Errorf("%s is no figure", words[0])
		}
	}
	if len(words) == 1 {
		return n, nil
	}
	unit, ok := units[words[1]]
	if !ok {
		unit = units[strings.TrimSuffix(words[1], "s")]
	}
	return n * unit, nil
}

// luaNumber is a number in a script or a part of the prelude, as the pattern finds it.
func luaNumber(t *testing.T, file, pattern string) int64 {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(proseFile(t, "lua/"+file+".lua"))
	require.Len(t, m, 2, "lua/%s.lua: %s", file, pattern)
	return must(strconv.ParseInt(m[1], 10, 64))
}

// The table of control messages has the verbs that scripts say and those that servers obey, and
// says which scripts they are.
func TestProseVerbsAreTheScripts(t *testing.T) {
	said := map[string][]string{}
	verb := regexp.MustCompile(`\bnudge\((?:channel|own), '(\w+)'`)
	withdraw := proseFile(t, "lua/prelude/withdraw.lua")
	tells := regexp.MustCompile(`\bwithdraw\([^)]*\bchannel\b`) // of a run that it ends
	for _, s := range script.All {
		text := strings.Replace(s.Text.(string), withdraw, "", 1)
		if tells.MatchString(text) {
			text += withdraw
		}
		for _, m := range verb.FindAllStringSubmatch(text, -1) {
			said[m[1]] = append(said[m[1]], s.Name)
		}
	}

	_, after, found := strings.Cut(proseFile(t, "docs/protocol.md"), "\n## Control messages\n")
	require.True(t, found)
	section, _, _ := strings.Cut(after, "\n## ")
	documented := map[string][]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| [^|]+ \\| ([\\w, ]+) \\|$").FindAllStringSubmatch(section, -1) {
		documented[m[1]] = strings.Split(m[2], ", ")
	}
	require.NotEmpty(t, said)
	for name, scripts := range said {
		slices.Sort(scripts)
		require.Equal(t, slices.Compact(scripts), documented[name], "who says %s", name)
	}
	require.Len(t, documented, len(said), "verbs that are said: %v, documented: %v", said, documented)

	var obeyed []string
	for _, decl := range proseLibrary(t)["internal/serve/control.go"].Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Name.Name != "obey" {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if c, ok := n.(*ast.CaseClause); ok {
				for _, e := range c.List {
					if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
						obeyed = append(obeyed, must(strconv.Unquote(lit.Value)))
					}
				}
			}
			return true
		})
	}
	delete(documented, "look") // is for clients
	for name := range documented {
		require.Contains(t, obeyed, name, "documented, and not obeyed")
	}
	require.Len(t, obeyed, len(documented), "obeyed: %v", obeyed)
}

// The table of docs/howto/many-topics.md has the goroutines that nodes.go allows, and the
// connections that TestConnectionsDoNotGrowWithTopics does.
func TestProseConnectionsAreThoseOfTheirTest(t *testing.T) {
	_, test, _ := strings.Cut(proseFile(t, "tests/control_test.go"), "\nfunc TestConnectionsDoNotGrowWithTopics(")
	require.Contains(t, test, "w.MostOpen(), 2*most)")
	_, test, _ = strings.Cut(test, "map[int]int{")
	test, _, _ = strings.Cut(test, "}")
	figures := regexp.MustCompile(`(\d+): (\d+)`).FindAllStringSubmatch(test, -1)
	require.Len(t, figures, 4)
	table := strings.ReplaceAll(proseFile(t, "docs/howto/many-topics.md"), ",000 |", "000 |")
	for _, m := range figures {
		n, most := must(strconv.Atoi(m[1])), must(strconv.Atoi(m[2]))
		row := fmt.Sprintf("\n| %d | %d | %d | %d |\n", n, serve.MostCalls(n)+serve.MostTakes(n), most, 2*most)
		require.Contains(t, table, row)
	}
	require.Contains(t, strings.Join(strings.Fields(proseFile(t, "docs/operations.md")), " "),
		fmt.Sprintf("1,000 topics keeps at most %s connections when it has little to do, and has at most %d under load", figures[3][2],
			2*must(strconv.Atoi(figures[3][2]))))
}

// Every promise of docs/reliability.md has a test that begins with its name.
func TestProsePromisesHaveTests(t *testing.T) {
	_, after, _ := strings.Cut(proseFile(t, "docs/reliability.md"), "\n## What is promised\n")
	section, _, _ := strings.Cut(after, "\n## ")
	promises := regexp.MustCompile(`(?m)^\d+\. \*\*([^*.]+)\.?\*\*`).FindAllStringSubmatch(section, -1)
	require.GreaterOrEqual(t, len(promises), 7)
	files, err := filepath.Glob("tests/*_test.go")
	require.NoError(t, err)
	var tests strings.Builder
	for _, file := range files {
		tests.WriteString(proseFile(t, file))
	}
	for _, m := range promises {
		name := "Test"
		for _, word := range strings.Fields(m[1]) {
			name += strings.ToUpper(word[:1]) + word[1:]
		}
		require.Contains(t, tests.String(), "\nfunc "+name, "the promise %q", m[1])
	}
}
