package docs_test

import (
	"flag"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tests in this file hold the translations to their originals, and llms.txt to the pages. What
// needs a browser or the generator is tested by docs/site/run.

var update = flag.Bool("update", false, "write docs/llms.txt")

var (
	proseBlock  = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	atxHeading  = regexp.MustCompile(`(?m)^(#+) `)
	goComment   = regexp.MustCompile(`(?m)[\t ]*//.*$`)
	textComment = regexp.MustCompile(`(?m)[\t ]*# .*$`)
)

// A translation has the headings of its original, level by level, the same blocks of code between
// them, but for comments, and the same links to files.
func TestTranslationsFollowTheirOriginals(t *testing.T) {
	for original, translation := range map[string]string{
		"README.md": "docs/zh-CN/README.md", "docs/tutorial.md": "docs/zh-CN/tutorial.md",
	} {
		require.Equal(t, outlineOf(t, original), outlineOf(t, translation), "%s: headings and code of %s", translation, original)
		translated := linksOf(t, translation)
		for _, link := range linksOf(t, original) {
			require.Contains(t, append(translated, translation), link, "%s: a link of %s", translation, original)
		}
	}
	status := regexp.MustCompile(`\*\*(?:Status:|状态：)\*\* (v\d+\.\d+\.\d+)`)
	require.Equal(t, status.FindStringSubmatch(proseFile(t, "README.md"))[1], status.FindStringSubmatch(proseFile(t, "docs/zh-CN/README.md"))[1])
}

// Figures of a translation are those of its original.
func TestTranslationsHaveTheFiguresOfTheirOriginals(t *testing.T) {
	figures := func(file string) []string {
		text := proseLink.ReplaceAllString(proseFence.ReplaceAllString(proseFile(t, file), "\n"), "]")
		list := regexp.MustCompile(`\d[\d,.]*\d|\d{2,}`).FindAllString(text, -1)
		slices.Sort(list)
		return slices.Compact(list)
	}
	require.Subset(t, figures("README.md"), figures("docs/zh-CN/README.md"))
	require.Subset(t, figures("docs/tutorial.md"), figures("docs/zh-CN/tutorial.md"))
	require.Greater(t, len(figures("docs/zh-CN/README.md")), 8)
}

// outlineOf lists the levels of the headings and the blocks of code of a document, in their order.
func outlineOf(t *testing.T, file string) (list []string) {
	text := proseFile(t, file)
	marks := map[int]string{}
	for _, at := range proseBlock.FindAllStringSubmatchIndex(text, -1) {
		language, code := text[at[2]:at[3]], text[at[4]:at[5]]
		comment := textComment
		if language == "go" {
			comment = goComment
		}
		marks[at[0]] = language + "\n" + comment.ReplaceAllString(code, "")
		text = text[:at[0]] + strings.Repeat(" ", at[1]-at[0]) + text[at[1]:]
	}
	for _, at := range atxHeading.FindAllStringSubmatchIndex(text, -1) {
		marks[at[0]] = text[at[2]:at[3]]
	}
	places := make([]int, 0, len(marks))
	for at := range marks {
		places = append(places, at)
	}
	slices.Sort(places)
	for _, at := range places {
		list = append(list, marks[at])
	}
	return list
}

// linksOf lists what a document links to: addresses, and files by their paths from the root.
func linksOf(t *testing.T, file string) (list []string) {
	text := proseFence.ReplaceAllString(proseFile(t, file), "\n")
	for _, m := range proseLink.FindAllStringSubmatch(text, -1) {
		to, _, _ := strings.Cut(m[1], "#")
		if !strings.Contains(to, "://") {
			to = path.Join(path.Dir(file), to)
		}
		if to == "docs/tutorial.md" || to == "docs/zh-CN/tutorial.md" {
			to = "docs/zh-CN/tutorial.md" // a translation links to the other one
		}
		list = append(list, to)
	}
	return list
}

// docs/llms.txt lists all pages for machines, in the format of llmstxt.org: a title, a summary, and
// links by section. `go test ./docs -run TestPagesForMachines -update` writes it.
func TestPagesForMachines(t *testing.T) {
	index := proseFile(t, "docs/README.md")
	var b strings.Builder
	b.WriteString("# delayq\n\n> A delay queue for Go on Redis. A job runs at the due millisecond, survives a crash of any process\n")
	b.WriteString("> (at least once), and is cancelled, moved or replaced by an ID that the program chooses.\n\n")
	b.WriteString("The library is `github.com/delayq/delayq`. Its calls and options are documented at\nhttps://pkg.go.dev/github.com/delayq/delayq.\n")
	seen := map[string]bool{}
	for _, section := range strings.Split(index, "\n## ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		b.WriteString("\n## " + title + "\n\n")
		for _, m := range proseLink.FindAllStringSubmatch(body, -1) {
			page, _, _ := strings.Cut(m[1], "#")
			if path.Ext(page) != ".md" || strings.HasPrefix(page, "..") || seen[page] {
				continue
			}
			seen[page] = true
			title, first := headOf(t, path.Join("docs", page))
			b.WriteString("- [" + title + "](" + page + "): " + first + "\n")
		}
	}
	b.WriteString("\n## Optional\n\n")
	pages, err := filepath.Glob("docs/zh-CN/*.md")
	require.NoError(t, err)
	for _, page := range pages {
		title, first := headOf(t, page)
		b.WriteString("- [" + title + "](" + strings.TrimPrefix(page, "docs/") + "): " + first + "\n")
	}
	if *update {
		require.NoError(t, os.WriteFile("docs/llms.txt", []byte(b.String()), 0o644))
	}
	require.Equal(t, b.String(), proseFile(t, "docs/llms.txt"), "go test ./docs -run TestPagesForMachines -update")
	require.Greater(t, len(seen), 40)
}

// headOf is the title of a page and its first sentence.
func headOf(t *testing.T, file string) (title, first string) {
	text := proseFile(t, file)
	title, text, found := strings.Cut(strings.TrimPrefix(text, "# "), "\n\n")
	require.True(t, found, file)
	text, _, _ = strings.Cut(text, "\n\n")
	text = regexp.MustCompile(`\[([^]]+)\](\([^)]*\)|\[[^]]*\])?`).ReplaceAllString(strings.Join(strings.Fields(text), " "), "$1")
	sentence := regexp.MustCompile(`^.*?(?:[.:?!](?: |$)|。)`).FindString(text)
	require.NotEmpty(t, sentence, "%s: its first paragraph has no sentence: %s", file, text)
	return title, strings.TrimSuffix(strings.TrimSpace(sentence), ":")
}
