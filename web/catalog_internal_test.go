package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/delayq/delayq"
)

var placeholder = regexp.MustCompile(`\{\d\}`)

func TestCatalogsAreComplete(t *testing.T) {
	en := catalogs["en"]
	for _, tag := range languages {
		require.Len(t, catalogs[tag], len(en), tag)
		for key, text := range en {
			other, ok := catalogs[tag][key]
			require.True(t, ok, "%s has no %s", tag, key)
			require.NotEmpty(t, other, key)
			sorted := func(s string) []string {
				list := placeholder.FindAllString(s, -1)
				slices.Sort(list)
				return slices.Compact(list)
			}
			require.Equal(t, sorted(text), sorted(other), "%s of %s", key, tag)
		}
	}
}

func TestOneAndMany(t *testing.T) {
	require.Equal(t, "1 job was buried within the last minute; 3 are dead.", translate("en", "trouble.dead", "1", "3"))
	require.Equal(t, "1,001 jobs were buried within the last minute; 1 is dead.", translate("en", "trouble.dead", "1,001", 1))
	require.Equal(t, "Purge {1:a|b} jobs of {0}?", translate("en", "confirm.title", "Purge", "{1:a|b}", "{0}"), "arguments are not looked into")
	choice := regexp.MustCompile(`\{\d:`)
	for _, tag := range languages {
		for key, text := range catalogs[tag] {
			require.Len(t, plural.FindAllString(text, -1), len(choice.FindAllString(text, -1)), "%s of %s", key, tag)
		}
	}
}

// Every text that templates and code ask for by a constant key is there, and so is every one that
// is put together.
func TestCatalogHasEveryKey(t *testing.T) {
	need := map[string]bool{}
	files, err := filepath.Glob("templates/*.html")
	require.NoError(t, err)
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	key := regexp.MustCompile(`\.(?:T|Label)\)? \(?"([a-z.-]+)"|\.T\("([a-z._-]+)"[,)]`)
	for _, file := range append(files, sources...) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range key.FindAllStringSubmatch(string(text), -1) {
			need[m[1]+m[2]] = true
		}
	}
	all := func(prefix string, names ...string) {
		for _, name := range names {
			need[prefix+name] = true
		}
	}
	for name, rt := range routes {
		if rt.show != nil && name != "confirm" && !strings.Contains(name, "schedule") && name != "pause" && name != "enqueue" && name != "edit-key" && name != "edit-topic" {
			all("nav.", name)
		}
	}
	for _, s := range states {
		all("state.", string(s))
		all("when.", string(s))
		all("filter.from.", string(s))
	}
	for _, name := range actNames {
		all("act.", name, name+".about")
	}
	for name := range topicActs {
		all("tact.", name, name+".about")
		all("did.topic-", name)
	}
	for _, name := range append(formats, "copy") {
		all("format.", name)
	}
	all("status.", "blocked")
	for _, s := range new(delayq.JobInfo).Settings(nil) {
		all("setting.", s.Name)
	}
	for _, key := range setBy {
		all("", key)
	}
	all("did.", actNames...)
	all("sact.", scheduleActs...)
	for _, name := range scheduleActs {
		all("sact.", name+".about")
		all("did.schedule-", name)
	}
	for name := range keyActs {
		all("kact.", name, name+".about")
		all("did.key-", name)
	}
	all("status.", topicNoServer, topicBehind, topicPaused, topicHeld, topicRunning, topicIdle)
	all("field.", filterFields...)
	all("history.", append(new(history).Groups(), "hour", "six", "month")...)
	for _, name := range counterNames {
		all("counter.", string(name))
	}
	explain, err := os.ReadFile("../explain.go") // a release can add reasons
	require.NoError(t, err)
	codes := regexp.MustCompile(`ReasonCode = "([a-z_]+)"`).FindAllStringSubmatch(string(explain), -1)
	require.Greater(t, len(codes), 20)
	for _, code := range codes {
		all("reason.", code[1])
	}
	all("duereason.", string(delayq.DueRetry), string(delayq.DueSnooze), string(delayq.DueReschedule), string(delayq.DueRevive), string(delayq.DueJoin), string(delayq.DueBury))
	all("kind.", string(delayq.KindError), string(delayq.KindPanic), string(delayq.KindGoexit), string(delayq.KindTimeout),
		string(delayq.KindLeaseLost), string(delayq.KindUndecodable), string(delayq.KindBuried))
	for _, s := range stepStates {
		all("stepstate.", string(s))
	}
	all("flowstate.", string(delayq.FlowOpen), string(delayq.FlowComplete), string(delayq.FlowFailed), string(delayq.FlowOver))
	all("sched.", string(delayq.ScheduleWaiting), string(delayq.ScheduleRunning), string(delayq.SchedulePaused), string(delayq.ScheduleEnded))
	all("server.", string(delayq.ServerNew), string(delayq.ServerStarting), string(delayq.ServerRunning), string(delayq.ServerDraining), string(delayq.ServerStopped))
	v := new(view)
	for _, word := range v.Words() {
		all("", word, word+".about")
	}
	for _, row := range v.Keys() {
		all("", row.Text)
	}
	require.Greater(t, len(need), 200)
	for name := range need {
		require.Contains(t, catalogs["en"], name)
	}
}

// Templates have no words of their own: they would be in one language only.
func TestTemplatesHaveNoBareText(t *testing.T) {
	names := map[string]bool{"delayq": true, ".json": true, "/s": true}
	files, err := filepath.Glob("templates/*.html")
	require.NoError(t, err)
	require.Greater(t, len(files), 20)
	action := regexp.MustCompile(`\{\{[^}]*\}\}`)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		z := html.NewTokenizer(bytes.NewReader(action.ReplaceAll(source, nil)))
		for z.Next() != html.ErrorToken {
			token := z.Token()
			texts := []string{token.Data}
			if token.Type != html.TextToken {
				texts = nil
			}
			for _, a := range token.Attr {
				if a.Key == "title" || a.Key == "alt" || a.Key == "aria-label" {
					texts = append(texts, a.Val)
				}
			}
			for _, text := range texts {
				for word := range strings.FieldsSeq(text) {
					require.False(t, strings.ContainsFunc(word, unicode.IsLetter) && !names[word], "%s: %q", file, word)
				}
			}
		}
		require.ErrorIs(t, z.Err(), io.EOF)
	}
}

// htmx is that of npm, version 4.0.1: dist/htmx.min.js of https://www.npmjs.com/package/htmx.org.
func TestHtmxIsTheReleasedOne(t *testing.T) {
	body, err := os.ReadFile("assets/htmx.min.js")
	require.NoError(t, err)
	sum := sha256.Sum256(body)
	require.Equal(t, "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130", hex.EncodeToString(sum[:]))
}

func TestAssetsAreSmall(t *testing.T) {
	var b bytes.Buffer
	total := 0
	for _, a := range assets {
		b.Reset()
		w := gzip.NewWriter(&b)
		_, err := w.Write(a.body)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		total += b.Len()
	}
	require.Less(t, total, 80_000)
	require.Greater(t, total, 10_000)
	t.Logf("%d bytes compressed", total)
}

func TestBars(t *testing.T) {
	svg := bars([]int64{0, 5, 10}, 30, 10, `two <b>`, func(i int) string { return "<i>" + string(rune('0'+i)) })
	require.Equal(t, template.HTML(`<svg class="bars" viewBox="0 0 30 10" preserveAspectRatio="none" role="img" aria-label="two &lt;b&gt;">`+
		`<rect class="zero" x="0.00" y="9.00" width="8.00" height="1.00"><title>&lt;i&gt;0</title></rect>`+
		`<rect class="bar" x="10.00" y="5.00" width="8.00" height="5.00"><title>&lt;i&gt;1</title></rect>`+
		`<rect class="bar" x="20.00" y="0.00" width="8.00" height="10.00"><title>&lt;i&gt;2</title></rect></svg>`), svg)
	require.Contains(t, bars(nil, 1, 1, "", nil), "</svg>")
}
