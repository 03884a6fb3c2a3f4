package docs_test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The code in the guides of docs/moving is that of the programs in example/moving, which are built
// and run. Spaces at the beginning of lines may differ.
func TestMovingCodeIsInThePrograms(t *testing.T) {
	plain := func(text string) string {
		return regexp.MustCompile(`(?m)^[\t ]+`).ReplaceAllString(text, "")
	}
	var programs []string
	require.NoError(t, filepath.WalkDir("example/moving", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "node_modules" {
			return filepath.SkipDir
		}
		switch filepath.Ext(path) {
		case ".go", ".mjs", ".sql":
			programs = append(programs, plain(proseFile(t, path)))
		}
		return err
	}))
	guides, err := filepath.Glob("docs/moving/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, guides)
	block := regexp.MustCompile("(?ms)^```(go|js|sql)\n(.*?)^```$")
	for _, guide := range guides {
		text := proseFile(t, guide)
		blocks := block.FindAllStringSubmatch(text, -1)
		if filepath.Base(guide) != "README.md" {
			require.Greater(t, len(blocks), 1, guide)
		}
		for _, m := range blocks {
			found := false
			for _, program := range programs {
				found = found || strings.Contains(program, plain(m[2]))
			}
			require.True(t, found, "%s: no program has\n%s", guide, m[2])
		}
		// What is said of others names the version, and when that was looked at.
		require.Regexp(t, `(?s)v?\d+\.\d+\.\d+.*(November|checked in) 2026|November 2026`, text, guide)
	}
}
