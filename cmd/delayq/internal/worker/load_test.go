package worker

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing them")

func TestMain(m *testing.M) { queuetest.Main(m, nil) }

const anyHook = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// environment is that of the example in docs/worker.md.
var environment = map[string]string{
	"REDIS_PASSWORD": "s3cret-redis", "SHOP_DSN": "postgres://shop:s3cret-dsn@db.example/shop", "REPORT_TOKEN": "s3cret-token",
	"BILLING_SECRET": anyHook, "PARTNER_SECRET": anyHook, "SHOP_SECRET": anyHook,
}

func getenv(name string) string { return environment[name] }

// example returns the file in docs/worker.md.
func example(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "worker.md"))
	require.NoError(t, err)
	_, after, found := strings.Cut(string(text), "\n```yaml\n# Without it, the flags")
	require.True(t, found)
	file, _, _ := strings.Cut(after, "```\n")
	return "# Without it, the flags" + file
}

// folder returns a folder with a file worker.yaml, and those that the example names.
func folder(t testing.TB, text string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"worker.yaml": text, "smtp-password": "s3cret-smtp\n", "welcome.txt": "Dear {{.name}}", "welcome.html": "<p>Dear {{.name}}</p>",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return filepath.Join(dir, "worker.yaml")
}

// load reads a file, and returns the mistakes without its path.
func load(t testing.TB, text string) (*File, []string) {
	t.Helper()
	path := folder(t, text)
	file, mistakes := Load(path, getenv)
	var list []string
	for _, m := range mistakes {
		line := strings.ReplaceAll(m.String(), path, "worker.yaml")
		for _, secret := range []string{"s3cret", anyHook, "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"} {
			require.NotContains(t, line, secret)
		}
		list = append(list, strings.ReplaceAll(line, filepath.Dir(path)+"/", ""))
	}
	require.Equal(t, file == nil, len(list) > 0)
	return file, list
}

// mustLoad is load for a file without mistakes.
func mustLoad(t testing.TB, text string) *File {
	t.Helper()
	file, mistakes := load(t, text)
	require.Empty(t, mistakes)
	return file
}

func TestExampleOfTheManual(t *testing.T) {
	f := mustLoad(t, example(t))
	require.Equal(t, Redis{URL: "redis://shop@redis-1:6379/0", Password: "s3cret-redis", Prefix: "shop"}, f.Redis)
	require.Equal(t, Server{Lease: 30 * time.Second, Drain: 20 * time.Second, Listen: "127.0.0.1:9467"}, f.Server)
	var lines []string
	for _, topic := range f.Topics {
		lines = append(lines, fmt.Sprintf("%s: %s, %s, %d, %d", topic.Name, topic.Kind, topic.Detail, topic.Concurrency(), topic.Schedules()))
	}
	require.Equal(t, []string{
		"sql: sql, 2 statements of shop, 10, 1", "command: command, 2 commands, 2, 0", "backup: command, cat, 10, 0",
		"mail: mail, 1 template by main, 10, 0", "webhook: webhook, 1 receiver, 2 patterns of hosts, 64, 0", "order:paid: webhook, to shop.example, 10, 1",
	}, lines)
	require.Equal(t, 2, f.Schedules())

	s := f.Topics[0].schedules[0]
	require.JSONEq(t, `{"statement":"clean-zombies","arguments":{"days":3}}`, string(s.payload))
	require.Equal(t, delayq.Every(10*time.Minute), s.spec)
	require.Equal(t, delayq.Limits{
		Running: 20, Rate: delayq.Per(100, time.Minute).Burst(10), RunningPerKey: 5, RatePerKey: delayq.Per(10, time.Second),
	}, f.Topics[5].settings.limits)
	// Every handler can be made.
	for _, topic := range f.Topics {
		v, err := newVersion(topic, delayq.NewClient(nil), &pools{}, f.redact)
		require.NoError(t, err, topic.Name)
		v.leave()
	}
}

// The example has every field that the file can have, and the manual says so.
func TestExampleHasEveryField(t *testing.T) {
	var doc yaml.Node
	text := example(t)
	require.NoError(t, yaml.Unmarshal([]byte(text), &doc))
	const wrong = "something-else-altogether"
	var spoil func(n *yaml.Node)
	spoil = func(n *yaml.Node) {
		for _, c := range n.Content {
			spoil(c)
		}
		if n.Kind == yaml.MappingNode {
			n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: wrong, Tag: "!!str"}, &yaml.Node{Kind: yaml.ScalarNode, Value: "1", Tag: "!!int"})
		}
	}
	spoil(&doc)
	var spoiled bytes.Buffer
	require.NoError(t, yaml.NewEncoder(&spoiled).Encode(&doc))
	_, mistakes := load(t, spoiled.String())
	found := map[string]bool{}
	for _, m := range mistakes {
		_, names, ok := strings.Cut(m, "unknown field \""+wrong+"\"; expected one of ")
		if !ok {
			continue
		}
		for name := range strings.SplitSeq(names, ", ") {
			found[name] = true
		}
	}
	require.Greater(t, len(found), 70)
	for name := range found {
		require.Regexp(t, `\b`+name+`\b`, text)
	}
}

func TestMistakes(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "mistakes.yaml"))
	require.NoError(t, err)
	environment := map[string]string{"BADSECRET": "hunter22"}
	path := folder(t, string(text))
	_, mistakes := Load(path, func(name string) string { return environment[name] })
	var out strings.Builder
	for _, m := range mistakes {
		require.NotRegexp(t, "hunter22|secretpw|secret-token", m.String())
		out.WriteString(strings.ReplaceAll(strings.ReplaceAll(m.String(), path, "mistakes.yaml"), filepath.Dir(path)+"/", "") + "\n")
	}
	golden := filepath.Join("testdata", "mistakes.txt")
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(out.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), out.String(), "go test -update writes it")
}

func TestMistakesOfTheFileAsAWhole(t *testing.T) {
	for text, want := range map[string]string{
		"":             "worker.yaml: the file is empty",
		"# nothing":    "worker.yaml: the file is empty",
		"a: [1":        "worker.yaml:1:1: not YAML: did not find expected ',' or ']'",
		"a: 1\n\tb: 2": "worker.yaml:2:1: not YAML: found a tab character that violates indentation",
		"[1]":          "worker.yaml:1:1: the file: is a list; expected a mapping of names and values",
		"server: {}":   "worker.yaml:1:1: topics: missing; a worker needs at least one",
		"topics: {}":   "worker.yaml:1:1: topics: is empty",
		"topics:":      "worker.yaml:1:1: topics: has no value",
		"topics: {a: {command: {argv: [ls]}}}\n---\nb: 1":                                     "worker.yaml:2:1: a second document; a file has one",
		"x: &a [*a]\ntopics: {a: {command: {argv: [ls]}}}":                                    `worker.yaml:1:1: unknown field "x"; expected one of redis, server, databases, smtp, topics`,
		"topics: {a: {<<: {}, command: {argv: [ls]}}}":                                        `worker.yaml:1:14: "a": << is not supported; repeat the fields, or use an alias for a whole value`,
		"topics: {a: {command: {argv: [ls]}, schedules: {s: {every: 1h, payload: &p [*p]}}}}": "worker.yaml:1:73: payload: nested more than 32 deep",
	} {
		_, got := load(t, text)
		require.Equal(t, []string{want}, got, text)
	}
	_, mistakes := Load(filepath.Join(t.TempDir(), "none.yaml"), getenv)
	require.Len(t, mistakes, 1)
	require.Contains(t, mistakes[0].String(), "no such file")
	open := folder(t, "topics: {a: {command: {argv: [ls]}}}")
	require.NoError(t, os.Chmod(open, 0o666))
	_, mistakes = Load(open, getenv)
	require.Equal(t, []Mistake{{File: open, Text: "everybody can write it (mode 0666), and it says which commands run"}}, mistakes)
	_, got := load(t, "topics: # "+strings.Repeat("x", mostFile))
	require.Equal(t, []string{"worker.yaml: worker.yaml: has more than 1048576 bytes"}, got)
	_, got = load(t, "topics:\n"+strings.Repeat("  ? [x]\n  : 1\n", 200))
	require.Len(t, got, mostMistakes+1)
	require.Equal(t, "worker.yaml: 101 more mistakes", got[mostMistakes])
}

// An alias stands for a value, so that topics can share one.
func TestAliases(t *testing.T) {
	f := mustLoad(t, "topics:\n  a: &a {command: {argv: [ls]}, retry: 3}\n  b: *a\n")
	require.Equal(t, f.Topics[0].settings, f.Topics[1].settings)
	require.Equal(t, 3, f.Topics[1].settings.job.retry)
}

func TestPayloads(t *testing.T) {
	for text, want := range map[string]string{
		`text`: "text", `"5"`: "5", `5`: "5", `1e400`: "1e400", `0x1F`: "31", `12345678901234567890`: "12345678901234567890", `true`: "true", `yes`: "yes",
		`[1, "2", null, [], {}]`: `[1,"2",null,[],{}]`, `{a: <b>, 1: 2, c: 2026-01-02}`: `{"a":"<b>","1":2,"c":"2026-01-02"}`, `""`: "",
	} {
		f := mustLoad(t, "topics: {a: {command: {argv: [ls]}, schedules: {s: {every: 1h, payload: "+text+"}}}}")
		require.Equal(t, want, string(f.Topics[0].schedules[0].payload), text)
	}
	for text, want := range map[string]string{
		`.inf`: `payload: ".inf" is no number of JSON`, `{a: 1, a: 2}`: `payload: the name "a" is there twice`, `{[a]: 1}`: "payload: a name that JSON does not have; expected a single value",
		`!!binary x`: "", `''`: "",
	} {
		_, got := load(t, "topics: {a: {command: {argv: [ls]}, schedules: {s: {every: 1h, payload: "+text+"}}}}")
		if want == "" {
			require.Empty(t, got)
			continue
		}
		require.Len(t, got, 1)
		require.Contains(t, got[0], want)
	}
}

// The payload of a schedule asks for something that its topic does.
func TestPayloadsThatNobodyServes(t *testing.T) {
	head := "databases: {d: {dsn: sqlite://x.db}}\nsmtp: {s: {host: h}}\ntopics:\n  t:\n    schedules: {s: {every: 1h, payload: %s}}\n    "
	for _, c := range []struct{ kind, good, bad, want string }{
		{
			`sql: {database: d, statements: {a: SELECT 1, b: SELECT 2}}`, `{statement: b}`, `{statement: c}`,
			`there is no statement "c" in this topic; expected {statement: …} with one of a, b`,
		},
		{`sql: {database: d, statements: {a: SELECT 1}}`, `{statement: a}`, `a`, `there is no statement "" in this topic`},
		{`command: {commands: {a: {argv: [ls]}}}`, `{command: a}`, `{command: b}`, `there is no command "b"`},
		{`command: {argv: [ls]}`, `anything`, ``, ``},
		{`mail: {server: s, from: a@b.example, templates: {a: {subject: x, text: welcome.txt}}}`, `{template: a}`, `{template: b}`, `there is no template "b"`},
		{
			`webhook: {receivers: {a: {url: "https://x.example", secrets: [{from_env: SHOP_SECRET}]}}}`, `{receiver: a}`, `{url: "https://y.example"}`,
			`there is no receiver ""`,
		},
		{`webhook: {hosts: [y.example], secrets: [{from_env: SHOP_SECRET}]}`, `{url: "https://y.example"}`, `{receiver: a}`, `there is no receiver "a"`},
	} {
		f := mustLoad(t, fmt.Sprintf(head, c.good)+c.kind)
		require.NoError(t, f.serves("t", f.Topics[0].schedules[0].payload))
		require.ErrorContains(t, f.serves("u", nil), `there is no topic "u"; expected one of t`)
		if c.bad == "" {
			continue
		}
		require.ErrorContains(t, f.serves("t", []byte("{}")), "there is no")
		_, got := load(t, fmt.Sprintf(head, c.bad)+c.kind)
		require.Len(t, got, 1)
		require.Contains(t, got[0], "worker.yaml:5:41: payload: "+c.want)
	}
}

// The bounds in mistakes are those of delayq.
func TestBoundsAreThoseOfDelayq(t *testing.T) {
	c := newChecker()
	defer c.close()
	h := delayq.HandlerFunc(func(context.Context, *delayq.Job) error { return nil })
	n := 0
	handle := func(opts ...delayq.HandlerOption) []string {
		n++
		return complaints(c.server.Handle(fmt.Sprint("t", n), h, opts...))
	}
	const ms = time.Millisecond
	for name, ok := range map[string][2]delayq.HandlerOption{
		"concurrency":      {delayq.Concurrency(10_000), delayq.Concurrency(10_001)},
		"retry":            {delayq.Defaults(delayq.Retry(1<<31 - 1)), delayq.Defaults(delayq.Retry(1 << 31))},
		"timeout":          {delayq.Defaults(delayq.Timeout(forever)), delayq.Defaults(delayq.Timeout(forever + ms))},
		"timeout least":    {delayq.Defaults(delayq.Timeout(ms)), delayq.Defaults(delayq.Timeout(ms - 1))},
		"retention":        {delayq.Defaults(delayq.Retention(forever)), delayq.Defaults(delayq.Retention(forever + ms))},
		"backoff":          {delayq.Defaults(delayq.Backoff(ms, forever)), delayq.Defaults(delayq.Backoff(ms, forever+ms))},
		"running":          {delayq.DefaultLimits(delayq.Limits{Running: 1_000_000}), delayq.DefaultLimits(delayq.Limits{Running: 1_000_001})},
		"running_per_key":  {delayq.DefaultLimits(delayq.Limits{RunningPerKey: 1000}), delayq.DefaultLimits(delayq.Limits{RunningPerKey: 1001})},
		"rate":             {delayq.DefaultLimits(delayq.Limits{Rate: delayq.Per(mostStarts, longestRate)}), delayq.DefaultLimits(delayq.Limits{Rate: delayq.Per(mostStarts+1, longestRate)})},
		"period of a rate": {delayq.DefaultLimits(delayq.Limits{Rate: delayq.Per(1, longestRate)}), delayq.DefaultLimits(delayq.Limits{Rate: delayq.Per(1, longestRate+1)})},
	} {
		require.Empty(t, handle(ok[0]), name)
		require.NotEmpty(t, handle(ok[1]), name)
	}
}

// What is wrong is said with the name that was probably meant.
func TestNearest(t *testing.T) {
	known := []string{"concurrency", "retry", "timeout", "running_per_key"}
	for wrong, want := range map[string]string{
		"concurency": "concurrency", "Retry": "retry", "rety": "retry", "tiemout": "timeout", "running-per-key": "running_per_key", "xyz": "", "": "",
	} {
		require.Equal(t, want, nearest(wrong, known), wrong)
	}
}

func TestSpanText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Millisecond: "1ms", time.Minute: "1m", time.Hour: "1h", 90 * time.Minute: "1h30m", 24 * time.Hour: "24h", 720 * time.Hour: "30d", forever: "100 years",
		time.Hour + time.Second: "1h0m1s",
	} {
		require.Equal(t, want, spanText(d))
	}
}

// A secret is nowhere in the text of an error, and the error is what it was.
func TestRedactor(t *testing.T) {
	r := newRedactor([]string{"abc", "s3cret", "dsn://u:s3cret@h"})
	err := delayq.Permanent(fmt.Errorf("abc: %w: dsn://u:s3cret@h, s3cret", os.ErrNotExist))
	clean := r.error(err)
	require.EqualError(t, clean, "abc: file does not exist: …, …")
	require.ErrorIs(t, clean, os.ErrNotExist)
	plain := fmt.Errorf("x")
	require.Equal(t, plain, r.error(plain))
	require.NoError(t, r.error(nil))
	require.Equal(t, plain, newRedactor(nil).error(plain))

	// An output whose beginning was cut off can begin within a secret.
	for text, want := range map[string]string{
		"cret s3cret": "… …", "s3cret": "…", "3cret, ret": "…, ret", "ret": "ret", "the 3cret": "the 3cret", "": "", "h": "h", "t@h": "t@h", "ret@h": "…",
	} {
		require.Equal(t, want, r.text(text, true), text)
		require.EqualError(t, r.error(errors.New("x; "+outputMark+text)), "x; "+outputMark+want)
	}
}

// Whatever stands in a file, Load returns either a File or mistakes with a place in the file.
func FuzzLoad(f *testing.F) {
	f.Add(example(f))
	text, err := os.ReadFile(filepath.Join("testdata", "mistakes.yaml"))
	require.NoError(f, err)
	f.Add(string(text))
	for line := range strings.Lines(string(text)) {
		f.Add("topics: {a: {command: {argv: [ls]}}}\n" + line)
	}
	position := regexp.MustCompile(`^[^:]+(:\d+:\d+)?: .`)
	f.Add("topics: {a: {command: {argv: [/bin/true]}, schedules: {s: {every: 1h, payload: &x [*x, *x]}}}}")
	f.Add("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\ntopics: {t: {command: {argv: [cat]}, schedules: {s: {every: 1h, payload: *c}}}}")
	f.Add("topics: " + strings.Repeat("{a: ", 200) + strings.Repeat("}", 200))
	f.Fuzz(func(t *testing.T, text string) {
		lines := 2
		for _, r := range text {
			if strings.ContainsRune("\n\r\u0085\u2028\u2029", r) { // the line breaks of YAML
				lines++
			}
		}
		path := filepath.Join(t.TempDir(), "w.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		file, mistakes := Load(path, getenv)
		require.Equal(t, file == nil, len(mistakes) > 0)
		for _, m := range mistakes {
			require.LessOrEqual(t, m.Line, lines)
			require.Regexp(t, position, m.String())
		}
		require.True(t, slices.IsSortedFunc(mistakes[:min(len(mistakes), mostMistakes)], func(a, b Mistake) int { return a.Line - b.Line }))
	})
}

// A value of the example that is empty is a mistake, whichever it is: its variable was not set
// where the file was made. What a program or a receiver gets can be empty.
func TestEmptyValuesAreMistakes(t *testing.T) {
	var doc yaml.Node
	text := example(t)
	require.NoError(t, yaml.Unmarshal([]byte(text), &doc))
	tried, free := 0, 0
	var empty func(n *yaml.Node, path string)
	empty = func(n *yaml.Node, path string) {
		switch n.Kind {
		case yaml.DocumentNode, yaml.SequenceNode:
			for _, c := range n.Content {
				empty(c, path)
			}
		case yaml.MappingNode:
			for i := 0; i < len(n.Content); i += 2 {
				empty(n.Content[i+1], path+"."+n.Content[i].Value)
			}
		case yaml.ScalarNode:
			before := *n
			n.Value, n.Tag, n.Style = "", "!!str", yaml.DoubleQuotedStyle
			changed, err := yaml.Marshal(&doc)
			require.NoError(t, err)
			*n = before
			_, mistakes := load(t, string(changed))
			tried++
			if regexp.MustCompile(`\.argv$|\.(env|headers|arguments|data|body|payload)\.|\.(payload|input|text|html|sql)$`).MatchString(path) {
				free++
				return
			}
			require.NotEmpty(t, mistakes, path)
		}
	}
	empty(&doc, "")
	require.Greater(t, tried, 80)
	require.Less(t, free, tried/3)
}
