package docs_test

import (
	"encoding/hex"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// The tests in this file hold scripts to their headers, and docs/protocol.md to the scripts.

var (
	binding = regexp.MustCompile(`(?m)^ *local ([\w, ]+) = (.*\b(?:KEYS|ARGV)\b.*)$`)
	bound   = regexp.MustCompile(`^(?:tonumber\()?(KEYS|ARGV)(?:\[(\d+)\])?\)?$`)
)

// What a header documents has a name in the body, once, and then goes by that name.
func TestProseScriptHeaderIsItsBody(t *testing.T) {
	for name := range script.Digests() {
		h := redistest.HeaderOf(t, name)
		require.True(t, redistest.Partial(name) || strings.Contains(h.Text, "Returns"), "%s: the header says what it returns", name)
		require.Contains(t, h.Text, "Cost: O(", "%s: the header says what it costs", name)
		got := map[string]string{}
		for _, m := range binding.FindAllStringSubmatch(h.Body, -1) {
			names, values := strings.Split(m[1], ", "), strings.Split(m[2], ", ")
			require.Len(t, values, len(names), "%s: %s", name, m[0])
			for i, value := range values {
				at := bound.FindStringSubmatch(value)
				switch {
				case at == nil: // first and width: the shape of a list in ARGV
					n, err := strconv.Atoi(value)
					require.NoError(t, err, "%s: %s", name, m[0])
					if names[i] == "first" {
						require.Contains(t, slices.Collect(maps.Values(h.Rest)), n, "%s: first", name)
					}
				case at[2] == "":
					got[fmt.Sprintf("%s[%d]", at[1], h.Rest[names[i]])] += names[i]
				default:
					got[fmt.Sprintf("%s[%s]", at[1], at[2])] += names[i]
				}
			}
		}
		require.Equal(t, h.Own, got, "%s: documented, bound to names", name)
		rest := binding.ReplaceAllString(h.Body, "")
		require.NotRegexp(t, `\b(KEYS|ARGV)\b`, rest, "%s: used beside the names", name)
		for _, word := range h.Own {
			if word != "operator" { // it is there for the check of rights alone
				require.Regexp(t, `\b`+word+`\b`, rest, "%s: %s has a name and is not used", name, word)
			}
		}
	}
}

func TestProseEveryLuaFileIsAScript(t *testing.T) {
	files, err := filepath.Glob("lua/*.lua")
	require.NoError(t, err)
	for _, file := range files {
		require.Contains(t, script.Digests(), strings.TrimSuffix(filepath.Base(file), ".lua"))
	}
	require.Len(t, files, len(script.Digests()))
}

var (
	luaNoCode   = regexp.MustCompile(`'(?:[^'\\\n]|\\.)*'|--[^\n]*`)
	luaGiven    = regexp.MustCompile(`(?m)^local (?:function (\w+)|(\w+(?:, \w+)*))`)
	luaDeclared = []*regexp.Regexp{
		regexp.MustCompile(`\blocal function (\w+)`), regexp.MustCompile(`\blocal (\w+(?:, \w+)*)`),
		regexp.MustCompile(`\bfunction *\w*\(([^)]*)\)`), regexp.MustCompile(`\bfor (\w+(?:, \w+)*)`),
	}
	luaWord  = regexp.MustCompile(`[.:]?\b[A-Za-z_]\w*`)
	luaKnown = strings.Fields(`and break do else elseif end false for function if in local nil not or repeat return
		then true until while redis cjson string table math tonumber tostring type ipairs pairs unpack pcall next error`)
)

// The first lines of a part of the prelude say which names it gives to what follows, and which ones
// it expects: all that it uses and does not declare, and none that it does not use.
func TestProsePartsSayWhatTheyGiveAndExpect(t *testing.T) {
	parts, err := filepath.Glob("lua/prelude/*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, parts)
	for _, part := range parts {
		text := proseFile(t, part)
		listed := func(word string) (names []string) {
			for _, m := range regexp.MustCompile(`(?m)^-- `+word+`: (.+)$`).FindAllStringSubmatch(text, -1) {
				names = append(names, strings.Fields(m[1])...)
			}
			return names
		}
		code := luaNoCode.ReplaceAllString(text, "")
		var given, declared, used []string
		for _, m := range luaGiven.FindAllStringSubmatch(code, -1) {
			given = append(given, strings.Split(m[1]+m[2], ", ")...)
		}
		require.Subset(t, given, listed("Gives"), "%s: Gives", part)
		for _, pattern := range luaDeclared {
			for _, m := range pattern.FindAllStringSubmatch(code, -1) {
				declared = append(declared, strings.FieldsFunc(m[1], func(r rune) bool { return strings.ContainsRune(", \n", r) })...)
			}
		}
		expected := listed("Expects")
		for _, at := range luaWord.FindAllStringIndex(code, -1) {
			word, set := code[at[0]:at[1]], strings.HasPrefix(code[at[1]:], " = ") // it may be a field
			used = append(used, word)
			if !set && word[0] != '.' && word[0] != ':' && !slices.Contains(declared, word) && !slices.Contains(luaKnown, word) {
				require.Contains(t, expected, word, "%s: Expects", part)
			}
		}
		require.Subset(t, used, expected, "%s: Expects", part)
		require.True(t, len(listed("Gives"))+len(expected) > 0, part)
	}
}

// A thought has one file.
func TestProseLuaFilesAreShort(t *testing.T) {
	const most = 300 // lines
	for _, pattern := range []string{"lua/*.lua", "lua/prelude/*.lua"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			require.LessOrEqual(t, strings.Count(proseFile(t, file), "\n"), most, file)
		}
	}
}

// One script, one caller: what it is given is written in one place.
func TestProseScriptIsUsedInOneDeclaration(t *testing.T) {
	users := map[string][]string{} // variable of a script → declarations
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\w+) += new(?:Reading)?Script\(`).FindAllStringSubmatch(proseFile(t, "internal/script/script.go"), -1) {
		known[m[1]] = true
	}
	require.Len(t, known, len(script.Digests()))
	for file, tree := range proseLibrary(t) {
		for _, decl := range tree.Decls {
			seen := map[string]bool{}
			ast.Inspect(decl, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if id, is := sel.X.(*ast.Ident); is && id.Name == "script" && known[sel.Sel.Name] && !seen[sel.Sel.Name] {
					seen[sel.Sel.Name] = true
					users[sel.Sel.Name] = append(users[sel.Sel.Name], fmt.Sprintf("%s:%d", file, decl.Pos()))
				}
				return true
			})
		}
	}
	for name := range known {
		require.Len(t, users[name], 1, "%s: %v", name, users[name])
	}
}

// Scripts get their keys; they build none. (J7)
func TestProseScriptsBuildNoKey(t *testing.T) {
	command := regexp.MustCompile(`redis\.p?call\('(\w+)', ([^,)]+)`)
	for name := range script.Digests() {
		for _, m := range command.FindAllStringSubmatch(redistest.HeaderOf(t, name).Body, -1) {
			if m[1] != "PUBLISH" && m[1] != "INFO" { // a channel is no key, nor is a section
				require.Regexp(t, `^\w+$`, m[2], "%s: %s", name, m[0])
			}
		}
	}
}

func TestProseKeysAreSpelledInKeysOnly(t *testing.T) {
	spelled := regexp.MustCompile(`[{}]:|:[{}]|^:\w|^(pool|bucket|leases|handoff|attempts|errors|moved|results|meta|stats|sizes|schedules|runs)$|^(receipt|taken):|^redis:"`)
	topic := 0
	for file, tree := range proseLibrary(t) {
		ast.Inspect(tree, func(n ast.Node) bool {
			if _, ok := n.(*ast.ImportSpec); ok {
				return false
			}
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			if text := must(strconv.Unquote(lit.Value)); spelled.MatchString(text) {
				require.Equal(t, "internal/script/keys.go", file, "%s", lit.Value)
				topic++
			}
			return true
		})
	}
	require.GreaterOrEqual(t, topic, 30) // or this test looks for the wrong thing
}

// docs/protocol.md has a section for each script with its keys and arguments in their order.
func TestProseProtocolIsTheScripts(t *testing.T) {
	protocol := proseFile(t, "docs/protocol.md")
	for name := range script.Digests() {
		_, after, found := strings.Cut(protocol, "\n### "+name+"\n")
		require.True(t, found, "docs/protocol.md has a section %s", name)
		section, _, _ := strings.Cut(after, "\n##")
		section = strings.ReplaceAll(section, "\n          ", " ") // a long line goes on in the next
		h := redistest.HeaderOf(t, name)
		if next, ok := map[string]string{"enqueue_keyed": "enqueue", "hand_over": "ack", "hand_over_again": "again"}[name]; ok { // which documents its arguments
			h.Rest = redistest.HeaderOf(t, next).Rest
			h.Own[fmt.Sprintf("ARGV[%d]", h.Rest["jobs"])] = "jobs"
		}
		words := func(kind string, names []string) string {
			for i, name := range names {
				if h.Rest[name] > 0 && h.Own[fmt.Sprintf("%s[%d]", kind, h.Rest[name])] == name {
					names[i] += "…"
				}
			}
			return "\n    " + kind + "  " + strings.Join(names, " ") + "\n"
		}
		require.Contains(t, section, words("KEYS", h.Keys), name)
		if len(h.Args) > 0 {
			require.Contains(t, section, words("ARGV", h.Args), name)
		}
		require.Contains(t, section, "| reply |", name)
	}
	k := script.NewKeys("delayq", "t")
	for _, key := range []string{
		k.Pool, k.Bucket, k.Ready, k.Handoff, k.Leases, k.Attempts, k.Errors, k.Moved, k.Dead, k.Done, k.Results, k.Meta, k.Stats, k.Sizes, k.Idle,
		k.Schedules, k.Slots, k.Waiting, k.Fired, k.Runs,
		k.Receipt("series"), k.Taken("server"), script.TopicsKey("delayq"), script.ServersKey("delayq"), script.ControlChannel("delayq"),
	} {
		name := strings.NewReplacer("delayq:", "", "{t}:", "", ":series", "", ":server", "").Replace(key)
		require.Regexp(t, "(?m)^\\| `(\\{topic\\}:)?"+name, protocol, "table of keys")
	}
	for _, word := range slices.Concat(wordsOf(t, "ErrorKind"), wordsOf(t, "Counter")) {
		require.Contains(t, protocol, "`"+word+"`")
	}
}

// The table of letters in docs/protocol.md has the constants of internal/script and no others, and
// says which scripts reply with them.
func TestProseLettersAreTheConstants(t *testing.T) {
	constants := map[string]string{} // letter → constant
	ast.Inspect(proseLibrary(t)["internal/script/script.go"], func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range spec.Names {
			if strings.HasPrefix(name.Name, "Letter") {
				lit, ok := spec.Values[i].(*ast.BasicLit)
				require.True(t, ok, name.Name)
				letter := must(strconv.Unquote(lit.Value))
				require.Empty(t, constants[letter], "%s is %s too", name.Name, letter)
				constants[letter] = name.Name
			}
		}
		return true
	})
	require.NotEmpty(t, constants)

	uses := map[string][]string{} // letter → scripts
	inCode := regexp.MustCompile(`'([a-zA-Z])'`)
	for _, s := range script.All {
		for line := range strings.Lines(s.Text.(string)) {
			code, _, _ := strings.Cut(line, "--")
			if !strings.Contains(code, "letter") || strings.Contains(code, "if ") {
				continue
			}
			for _, m := range inCode.FindAllStringSubmatch(code, -1) {
				uses[m[1]] = append(uses[m[1]], s.Name)
			}
		}
	}

	_, after, found := strings.Cut(proseFile(t, "docs/protocol.md"), "\n### Letters\n")
	require.True(t, found)
	section, _, _ := strings.Cut(after, "\n###")
	documented := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w)` \\| `(\\w+)` \\| [^|]+ \\| ([\\w, ]+) \\|$").FindAllStringSubmatch(section, -1) {
		letter, constant, scripts := m[1], m[2], strings.Split(m[3], ", ")
		require.Empty(t, documented[letter], "%s stands twice", letter)
		documented[letter] = constant
		if i := slices.Index(scripts, "settling scripts"); i >= 0 {
			scripts = slices.Delete(scripts, i, i+1)
			for v := settle.Ack; v <= settle.HoldKey; v++ {
				scripts = append(scripts, v.Script().Name)
			}
		}
		slices.Sort(uses[letter])
		slices.Sort(scripts)
		require.Equal(t, slices.Compact(uses[letter]), slices.Compact(scripts), "scripts that reply with %s", letter)
	}
	require.Equal(t, constants, documented)
	require.Len(t, uses, len(constants), "letters in scripts")
}

// Outcomes, kinds and counters are labels of metrics: words without spaces. The scripts write no
// others.
func TestProseOutcomesAreOneWord(t *testing.T) {
	known := map[string][]string{
		"outcome": wordsOf(t, "Outcome"), "kind": wordsOf(t, "ErrorKind"), "counter": wordsOf(t, "Counter"),
	}
	for what, words := range known {
		for _, word := range words {
			require.Regexp(t, `^[a-z]+(_[a-z]+)*$`, word, what)
		}
	}
	rdb := ownRedis(t)
	stats, err := delayq.NewInspector(rdb).Stats(t.Context(), "topic")
	require.NoError(t, err)
	require.Len(t, stats[0].Counters, len(known["counter"]), "Stats answers all of them")
	for v := settle.Ack; v <= settle.HoldKey; v++ {
		require.Contains(t, known["counter"], v.Outcome(), "an outcome that a script counts")
	}
	patterns := map[string]*regexp.Regexp{
		"outcome": regexp.MustCompile(`(?:outcome = |end_run\(.*, )'([^']*)'`),
		"kind":    regexp.MustCompile(`kind = '([^']*)'`),
		"counter": regexp.MustCompile(`(?:count\(stats, |'HINCRBY', stats, )'([^']*)'`),
	}
	found := map[string]int{}
	files, err := filepath.Glob("lua/*.lua")
	require.NoError(t, err)
	parts, err := filepath.Glob("lua/prelude/*.lua")
	require.NoError(t, err)
	for _, file := range append(files, parts...) {
		for what, pattern := range patterns {
			for _, m := range pattern.FindAllStringSubmatch(proseFile(t, file), -1) {
				require.Contains(t, known[what], m[1], file)
				found[what]++
			}
		}
	}
	require.Len(t, found, len(patterns), "in scripts")
}

// The record that docs/protocol.md shows byte by byte is one.
func TestProseRecordIsOne(t *testing.T) {
	_, after, _ := strings.Cut(proseFile(t, "docs/protocol.md"), "\n```hex\n")
	block, _, _ := strings.Cut(after, "```")
	raw, err := hex.DecodeString(strings.Join(strings.Fields(block), ""))
	require.NoError(t, err)
	r, err := record.Decode(string(raw))
	require.NoError(t, err)
	require.Equal(t, "hi", string(r.Payload))
	require.Equal(t, int64(1_750_000_000_000), r.EnqueuedAt)
	require.Equal(t, int64(30*60*1000), r.Due()-r.EnqueuedAt)
	options := stored(t, delayq.ProcessIn(30*time.Minute), delayq.Retry(6), delayq.Header("lang", "en"))
	require.Equal(t, options, r.Options)
	head, tail, err := record.Encode(record.Nonce(raw[:record.NonceLen]), &options, r.Payload)
	require.NoError(t, err)
	require.Equal(t, string(raw), string(head)+string(raw[record.HeadLen:record.HeadLen+record.StampLen])+string(tail))
}

// Every outcome and every bucket has a series, and the names are those of the protocol.
func TestSeriesOfAHistory(t *testing.T) {
	t.Parallel()
	require.Len(t, record.SeriesNames, record.SeriesCount)
	names := wordsAt(t, "outcomeNames")
	require.Equal(t, record.Outcomes[:], names)
	require.ElementsMatch(t, wordsOf(t, "Outcome"), names)
	require.Len(t, names, record.OutcomeCount)
	require.Equal(t, "late0", record.SeriesNames[record.FirstLate])
	require.Equal(t, "ran0", record.SeriesNames[record.FirstRan])
	require.Equal(t, "ran17", record.SeriesNames[record.SeriesCount-1])
	require.Less(t, record.SeriesCount, 64)
	for _, bounds := range [][]time.Duration{record.LatenessBounds, record.RunTimeBounds} {
		require.True(t, slices.IsSorted(bounds))
		for i, bound := range bounds {
			require.Equal(t, i, record.BucketOf(bounds, bound))
			require.Equal(t, i+1, record.BucketOf(bounds, bound+1))
		}
		require.Equal(t, 0, record.BucketOf(bounds, -time.Hour), "too early is not late")
	}
	text := strings.Join(strings.Fields(proseFile(t, "docs/protocol.md")), " ")
	words := func(bounds []time.Duration) string {
		list := ""
		for _, bound := range bounds {
			list += " " + bound.String()
		}
		return list
	}
	require.Equal(t, " 1ms 2ms 5ms 10ms 25ms 50ms 100ms 250ms 500ms 1s 2.5s 5s 10s 30s 1m0s 5m0s 15m0s 1h0m0s", words(record.LatenessBounds))
	require.Contains(t, text, "are 1, 2, 5, 10, 25, 50, 100, 250 and 500 ms, 1, 2.5, 5, 10 and 30 s, 1, 5 and 15 min and 1 h. "+
		"Those of `ran0` to `ran16` are the same without 2 ms.")
	require.Equal(t, strings.Replace(words(record.LatenessBounds), " 2ms", "", 1), words(record.RunTimeBounds))
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = "`" + name + "`"
	}
	require.Contains(t, text, "| "+strings.Join(quoted, ", ")+" | runs that ended in this way |")
}
