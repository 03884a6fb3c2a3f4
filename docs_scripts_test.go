package delayq

import (
	"encoding/hex"
	"fmt"
	"go/ast"
	"go/parser"
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

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// The tests in this file hold scripts to their headers, and docs/protocol.md to the scripts.

var documented = regexp.MustCompile(`^-- (KEYS|ARGV)\[(\d+)(\.\.)?\]\s+(\w+)\s+\S`)

var (
	binding = regexp.MustCompile(`(?m)^ *local ([\w, ]+) = (.*\b(?:KEYS|ARGV)\b.*)$`)
	bound   = regexp.MustCompile(`^(?:tonumber\()?(KEYS|ARGV)(?:\[(\d+)\])?\)?$`)
)

// A luaHeader is what the comment at the top of a script says of KEYS and ARGV, and what is under
// it.
type luaHeader struct {
	own        map[string]string // KEYS[1] and so on → name, as this file documents them
	keys, args []string          // all names in their order
	rest       map[string]int    // name of an ARGV[n..] → n
	text, body string            // the comment, and the rest with the parts of the prelude in it
}

// beforeEnqueue are the scripts that enqueue follows in the same call.
var beforeEnqueue = map[string]bool{"replace": true, "enqueue_keyed": true}

// readLua reads the header of a script and checks that its numbers go up from 1. Only replace
// and enqueue_keyed leave some to enqueue.
func readLua(t *testing.T, name string) luaHeader {
	t.Helper()
	h := luaHeader{own: map[string]string{}, rest: map[string]int{}}
	if beforeEnqueue[name] {
		enqueue := readLua(t, "enqueue")
		h.keys, h.args = enqueue.keys, enqueue.args
	}
	h.body = proseFile(t, "lua/"+name+".lua")
	require.True(t, strings.HasPrefix(h.body, "-- "+name+": "), "lua/%s.lua begins with its name", name)
	for strings.HasPrefix(h.body, "--") {
		line, after, _ := strings.Cut(h.body, "\n")
		h.text, h.body = h.text+line+"\n", after
		m := documented.FindStringSubmatch(line)
		if m == nil {
			require.NotRegexp(t, `^-- (KEYS|ARGV)\[`, line, "%s: a line of the header that cannot be read", name)
			continue
		}
		list := &h.args
		if m[1] == "KEYS" {
			list = &h.keys
		}
		n := must(strconv.Atoi(m[2]))
		if n > len(*list) {
			*list = append(*list, m[4])
		}
		require.Equal(t, 0, len(h.own[m[1]+"["+m[2]+"]"]), "%s: %s", name, line)
		require.LessOrEqual(t, n, len(*list), "%s: %s", name, line)
		require.Equal(t, m[4], (*list)[n-1], "%s: %s", name, line)
		h.own[m[1]+"["+m[2]+"]"] = m[4]
		if m[3] != "" {
			h.rest[m[4]] = n
		}
	}
	require.True(t, beforeEnqueue[name] || len(h.own) == len(h.keys)+len(h.args), name)
	h.body = script.Paste(h.body, map[string]bool{})
	return h
}

// What a header documents has a name in the body, once, and then goes by that name.
func TestProseScriptHeaderIsItsBody(t *testing.T) {
	for name := range Scripts() {
		h := readLua(t, name)
		require.True(t, beforeEnqueue[name] || strings.Contains(h.text, "Returns"), "%s: the header says what it returns", name)
		require.Contains(t, h.text, "Cost: O(", "%s: the header says what it costs", name)
		got := map[string]string{}
		for _, m := range binding.FindAllStringSubmatch(h.body, -1) {
			names, values := strings.Split(m[1], ", "), strings.Split(m[2], ", ")
			require.Len(t, values, len(names), "%s: %s", name, m[0])
			for i, value := range values {
				at := bound.FindStringSubmatch(value)
				switch {
				case at == nil: // first and width: the shape of a list in ARGV
					n, err := strconv.Atoi(value)
					require.NoError(t, err, "%s: %s", name, m[0])
					if names[i] == "first" {
						require.Contains(t, slices.Collect(maps.Values(h.rest)), n, "%s: first", name)
					}
				case at[2] == "":
					got[fmt.Sprintf("%s[%d]", at[1], h.rest[names[i]])] += names[i]
				default:
					got[fmt.Sprintf("%s[%s]", at[1], at[2])] += names[i]
				}
			}
		}
		require.Equal(t, h.own, got, "%s: documented, bound to names", name)
		rest := binding.ReplaceAllString(h.body, "")
		require.NotRegexp(t, `\b(KEYS|ARGV)\b`, rest, "%s: used beside the names", name)
		for _, word := range h.own {
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
		require.Contains(t, Scripts(), strings.TrimSuffix(filepath.Base(file), ".lua"))
	}
	require.Len(t, files, len(Scripts()))
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
		then true until while redis cjson string table math tonumber tostring type ipairs pairs unpack pcall next`)
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
	require.Len(t, known, len(Scripts()))
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
	for name := range Scripts() {
		for _, m := range command.FindAllStringSubmatch(readLua(t, name).body, -1) {
			require.Regexp(t, `^\w+$`, m[2], "%s: %s", name, m[0])
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
	for name := range Scripts() {
		_, after, found := strings.Cut(protocol, "\n### "+name+"\n")
		require.True(t, found, "docs/protocol.md has a section %s", name)
		section, _, _ := strings.Cut(after, "\n##")
		section = strings.ReplaceAll(section, "\n          ", " ") // a long line goes on in the next
		h := readLua(t, name)
		if name == "enqueue_keyed" { // whose arguments enqueue documents
			enqueue := readLua(t, "enqueue")
			h.rest, h.own["ARGV[5]"] = enqueue.rest, "jobs"
		}
		words := func(kind string, names []string) string {
			for i, name := range names {
				if h.rest[name] > 0 && h.own[fmt.Sprintf("%s[%d]", kind, h.rest[name])] == name {
					names[i] += "…"
				}
			}
			return "\n    " + kind + "  " + strings.Join(names, " ") + "\n"
		}
		require.Contains(t, section, words("KEYS", h.keys), name)
		if len(h.args) > 0 {
			require.Contains(t, section, words("ARGV", h.args), name)
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

// The table of letters in docs/protocol.md has the constants of internal/script and no others, and says
// which scripts reply with them.
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
	inCode := regexp.MustCompile(`'([a-z])'`)
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

// wordsOf gives the values of the constants of a type in outcome.go.
func wordsOf(t *testing.T, name string) (list []string) {
	file, err := parser.ParseFile(token.NewFileSet(), "retry.go", nil, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == name {
			lit, ok := spec.Values[0].(*ast.BasicLit)
			require.True(t, ok, spec.Names[0].Name)
			list = append(list, must(strconv.Unquote(lit.Value)))
		}
		return true
	})
	require.NotEmpty(t, list, name)
	return list
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
	require.Len(t, counters, len(known["counter"]), "Inspect answers all of them")
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
	o, err := newJobOptions([]JobOption{ProcessIn(30 * time.Minute), Retry(6), Header("lang", "en")})
	require.NoError(t, err)
	require.Equal(t, o.Options, r.Options)
	head, tail, err := record.Encode(record.Nonce(raw[:record.NonceLen]), &o.Options, r.Payload)
	require.NoError(t, err)
	require.Equal(t, string(raw), string(head)+string(raw[record.HeadLen:record.HeadLen+record.StampLen])+string(tail))
}
