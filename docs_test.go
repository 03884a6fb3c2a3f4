package delayq

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The tests in this file hold prose to what it speaks of: comments and documents to code.

// A luaHeader is what the comment at the top of a script says of KEYS and ARGV, and what is under it.
type luaHeader struct {
	keys, args []string       // names in their order
	rest       map[string]int // name of an ARGV[n..] to n
	body       string
}

var documented = regexp.MustCompile(`^-- (KEYS|ARGV)\[(\d+)(\.\.)?\]\s+(\w+)\s+\S`)

// readLua reads the header of a script and checks that its numbers go up from 1.
func readLua(t *testing.T, name string) luaHeader {
	t.Helper()
	text := proseFile(t, "lua/"+name+".lua")
	require.True(t, strings.HasPrefix(text, "-- "+name+": "), "lua/%s.lua begins with its name", name)
	h := luaHeader{rest: map[string]int{}}
	for len(text) > 0 && strings.HasPrefix(text, "--") {
		line, after, _ := strings.Cut(text, "\n")
		text = after
		m := documented.FindStringSubmatch(line)
		if m == nil {
			require.NotRegexp(t, `^-- (KEYS|ARGV)\[`, line, "%s: a line of the header that cannot be read", name)
			continue
		}
		list := &h.args
		if m[1] == "KEYS" {
			list = &h.keys
		}
		*list = append(*list, m[4])
		require.Equal(t, strconv.Itoa(len(*list)), m[2], "%s: %s", name, line)
		if m[3] != "" {
			h.rest[m[4]] = len(*list)
		}
	}
	h.body = text
	return h
}

var (
	binding = regexp.MustCompile(`(?m)^local ([\w, ]+) = (.*\b(?:KEYS|ARGV)\b.*)$`)
	bound   = regexp.MustCompile(`^(?:tonumber\()?(KEYS|ARGV)(?:\[(\d+)\])?\)?$`)
)

func TestProseScriptHeaderIsItsBody(t *testing.T) {
	for name := range Scripts() {
		h := readLua(t, name)
		require.Contains(t, proseFile(t, "lua/"+name+".lua"), "Returns", "%s: the header says what it returns", name)
		require.Contains(t, proseFile(t, "lua/"+name+".lua"), "Cost: ", "%s: the header says what it costs", name)
		got := map[string]string{} // "KEYS[1]" → name
		for _, m := range binding.FindAllStringSubmatch(h.body, -1) {
			names, values := strings.Split(m[1], ", "), strings.Split(m[2], ", ")
			require.Len(t, values, len(names), "%s: %s", name, m[0])
			for i, value := range values {
				at := bound.FindStringSubmatch(value)
				switch {
				case at == nil: // first or width, the shape of a list in ARGV
					_, err := strconv.Atoi(value)
					require.NoError(t, err, "%s: %s", name, m[0])
					if names[i] == "first" {
						require.Contains(t, slices.Collect(maps.Values(h.rest)), must(strconv.Atoi(value)), "%s: first", name)
					}
				case at[2] == "":
					require.Contains(t, h.rest, names[i], "%s: %s", name, m[0])
					got[fmt.Sprintf("%s[%d]", at[1], h.rest[names[i]])] += names[i]
				default:
					got[fmt.Sprintf("%s[%s]", at[1], at[2])] += names[i]
				}
			}
		}
		want := map[string]string{}
		for i, key := range h.keys {
			want[fmt.Sprintf("KEYS[%d]", i+1)] = key
		}
		for i, arg := range h.args {
			want[fmt.Sprintf("ARGV[%d]", i+1)] = arg
		}
		require.Equal(t, want, got, "%s: documented, bound to names", name)
		require.NotRegexp(t, `\b(KEYS|ARGV)\b`, binding.ReplaceAllString(h.body, ""), "%s: used beside the names", name)
		for _, word := range append(slices.Clone(h.keys), h.args...) {
			uses := regexp.MustCompile(`\b`+word+`\b`).FindAllString(binding.ReplaceAllString(h.body, ""), -1)
			require.NotEmpty(t, uses, "%s: %s is bound and not used", name, word)
		}
	}
}

func TestProseEveryLuaFileIsAScript(t *testing.T) {
	files, err := filepath.Glob("lua/*.lua")
	require.NoError(t, err)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".lua")
		if name != "prelude" {
			require.Contains(t, Scripts(), name)
		}
	}
	require.Len(t, files, len(Scripts())+1)
}

// One script, one caller: what it is given is written in one place.
func TestProseScriptIsUsedInOneDeclaration(t *testing.T) {
	users := map[string][]string{} // script → declarations
	for file, tree := range proseGo(t) {
		for _, decl := range tree.Decls {
			seen := map[string]bool{}
			ast.Inspect(decl, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				if ok && strings.HasSuffix(id.Name, "Script") && Scripts()[strings.TrimSuffix(id.Name, "Script")] != "" && file != "scripts.go" && !seen[id.Name] {
					seen[id.Name] = true
					users[id.Name] = append(users[id.Name], fmt.Sprintf("%s:%d", file, decl.Pos()))
				}
				return true
			})
		}
	}
	for name := range Scripts() {
		require.Len(t, users[name+"Script"], 1, "%s: %v", name, users[name+"Script"])
	}
}

// Scripts get their keys; they build none.
func TestProseScriptsBuildNoKey(t *testing.T) {
	command := regexp.MustCompile(`redis\.p?call\('(\w+)', ([^,)]+)`)
	for name := range Scripts() {
		for _, m := range command.FindAllStringSubmatch(readLua(t, name).body, -1) {
			require.Regexp(t, `^\w+$`, m[2], "%s: %s", name, m[0])
		}
	}
}

func TestProseKeysAreSpelledInTopicOnly(t *testing.T) {
	spelled := regexp.MustCompile(`[{}]:|:[{}]|^:|^(pool|bucket|leases|handoff|attempts|errors|moved|results|meta|stats)$|^(receipt|taken):`)
	topic := 0
	for file, tree := range proseGo(t) {
		ast.Inspect(tree, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			if text := must(strconv.Unquote(lit.Value)); spelled.MatchString(text) {
				require.Equal(t, "topic.go", file, "%s", lit.Value)
				topic++
			}
			return true
		})
	}
	require.GreaterOrEqual(t, topic, 14) // or this test looks for the wrong thing
}

// The comment of an option names its default; docs/operations.md repeats it.
func TestProseDefaultsAreTheRealOnes(t *testing.T) {
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	require.Equal(t, -1, defaultJob.retry) // unlimited
	require.Equal(t, int64(0), defaultJob.timeout|defaultJob.expireAt|defaultJob.expireIn|defaultJob.retention|defaultJob.dueAt|defaultJob.dueIn)
	defaults := map[string]string{
		"Retry":        "unlimited",
		"Backoff":      proseDuration(ms(defaultJob.backoffMin)) + " and " + strconv.FormatInt(defaultJob.backoffMax/1000, 10) + " s",
		"Timeout":      "no limit",
		"Retention":    "a finished job leaves nothing behind",
		"Prefix":       strconv.Quote(defaultClient.prefix),
		"MaxPayload":   fmt.Sprintf("%d MiB", defaultClient.maxPayload>>20),
		"WaitReplicas": "no waiting",
		"Concurrency":  strconv.Itoa(defaultServer.concurrency),
		"Lease":        proseDuration(defaultServer.lease),
		"Drain":        proseDuration(defaultServer.drain),
		"Tick":         "and maximum " + proseDuration(defaultServer.tick),
		"DeadLimit":    fmt.Sprintf("%d,%03d and %d days", defaultServer.deadCount/1000, defaultServer.deadCount%1000, defaultServer.deadAge/(24*time.Hour)),
		"Logger":       "slog.Default()",
	}
	require.Equal(t, defaultClient.prefix, defaultServer.prefix)
	operations := proseFile(t, "docs/operations.md")
	for option, value := range defaults {
		doc := proseDoc(t, option)
		require.Regexp(t, `(?i)default(s)?(:| and|)? ?`+regexp.QuoteMeta(value), strings.Join(strings.Fields(doc), " "), option)
		if option != "Logger" && option != "WaitReplicas" && option != "Timeout" && option != "Retention" {
			value = strings.TrimPrefix(value, "and maximum ")
			require.Regexp(t, "(?m)^\\| `"+option+"`.* \\| "+regexp.QuoteMeta(value)+" \\|", operations, "table of options in docs/operations.md")
		}
	}
}

// Limits that several documents name.
func TestProseLimitsAreTheRealOnes(t *testing.T) {
	readme := proseFile(t, "README.md")
	for what, words := range map[string]string{
		"ID":      fmt.Sprintf("%d KiB", maxIDLen>>10),
		"topic":   fmt.Sprintf("%d bytes", maxTopicLen),
		"headers": fmt.Sprintf("%d KiB", maxHeaderLen>>10),
		"payload": fmt.Sprintf("%d MiB", defaultClient.maxPayload>>20),
		"delay":   fmt.Sprintf("%.0f years", maxDelay.Hours()/24/365),
		"due":     strconv.Itoa(time.UnixMilli(maxDueMS).UTC().Year()),
		"retries": strings.ReplaceAll(fmt.Sprint(math.MaxInt32), "2147483647", "2,147,483,647"),
	} {
		require.Contains(t, readme, words, what)
	}
	require.EqualValues(t, math.MaxInt32, maxRetry)
}

func TestProseReadmeCodeIsTheExample(t *testing.T) {
	_, after, _ := strings.Cut(proseFile(t, "README.md"), "\n```go\n")
	block, _, found := strings.Cut(after, "\n```\n")
	require.True(t, found)
	source := proseFile(t, "example_test.go")
	_, after, _ = strings.Cut(source, "\nfunc shop(")
	_, after, _ = strings.Cut(after, "{\n")
	body, _, found := strings.Cut(after, "\n}\n")
	require.True(t, found)
	require.Equal(t, regexp.MustCompile(`(?m)^\t`).ReplaceAllString(body, ""), block)
	require.LessOrEqual(t, strings.Count(block, "\n")+1, 25)
}

func TestProseRootDependsOnFourModules(t *testing.T) {
	_, after, _ := strings.Cut(proseFile(t, "go.mod"), "require (")
	block, _, _ := strings.Cut(after, "\n)")
	var direct []string
	for line := range strings.Lines(block) {
		if f := strings.Fields(line); len(f) == 2 {
			direct = append(direct, f[0])
		}
	}
	require.Equal(t, []string{
		"github.com/alicebob/miniredis/v2", // of delayqtest
		"github.com/redis/go-redis/v9",
		"github.com/stretchr/testify", // of the tests
		"github.com/vmihailenco/msgpack/v5",
	}, direct)
	for file, tree := range proseGo(t) {
		for _, spec := range tree.Imports {
			path := must(strconv.Unquote(spec.Path.Value))
			require.NotContains(t, path, "miniredis", file)
			require.NotContains(t, path, "testify", file)
			require.NotContains(t, path, "delayq/internal", file)
		}
	}
}

// docs/protocol.md has a section for each script with its keys and arguments in their order.
func TestProseProtocolIsTheScripts(t *testing.T) {
	protocol := proseFile(t, "docs/protocol.md")
	for name := range Scripts() {
		_, after, found := strings.Cut(protocol, "\n### "+name+"\n")
		require.True(t, found, "docs/protocol.md has a section %s", name)
		section, _, _ := strings.Cut(after, "\n##")
		h := readLua(t, name)
		words := func(kind string, names []string) string {
			for i, name := range names {
				if h.rest[name] > 0 && kind == "ARGV" {
					names[i] += "…"
				}
			}
			return "\n    " + kind + "  " + strings.Join(names, " ") + "\n"
		}
		require.Contains(t, section, words("KEYS", h.keys), name)
		require.Contains(t, section, words("ARGV", h.args), name)
		require.Contains(t, section, "| reply |", name)
	}
	k := newKeys("delayq", "t")
	for _, key := range []string{
		k.pool, k.bucket, k.ready, k.handoff, k.leases, k.attempts, k.errors, k.moved, k.dead, k.done, k.results, k.meta, k.stats,
		k.receipt("lane"), k.taken("server"), topicsKey("delayq"), serversKey("delayq"), controlChannel("delayq"),
	} {
		name := strings.NewReplacer("delayq:", "", "{t}:", "", ":lane", "", ":server", "").Replace(key)
		require.Regexp(t, "(?m)^\\| `(\\{topic\\}:)?"+name, protocol, "table of keys")
	}
	for _, counter := range counters {
		require.Contains(t, protocol, "`"+counter+"`", "counter")
	}
	for _, kind := range []string{kindError, kindPanic, kindGoexit, kindTimeout, kindLeaseLost, kindUndecodable} {
		require.Contains(t, protocol, "`"+kind+"`", "kind of failure")
	}
}

var proseLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestProseLinksResolve(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != "." {
			return errors_Join(err, fs.SkipDir)
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		for _, m := range proseLink.FindAllStringSubmatch(proseFile(t, path), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := filepath.Join(filepath.Dir(path), file)
			if file == "" {
				target = path
			}
			_, err := os.Stat(target)
			require.NoError(t, err, "%s links to %s", path, m[1])
			if anchor != "" {
				require.Contains(t, anchors(proseFile(t, target)), anchor, "%s links to %s", path, m[1])
			}
		}
		return nil
	})
	require.NoError(t, err)
}
