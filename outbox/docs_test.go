package outbox_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// read returns the text of files of the repository.
func read(t *testing.T, patterns ...string) (text string) {
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.FromSlash("../" + pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			body, err := os.ReadFile(file)
			require.NoError(t, err)
			text += string(body)
		}
	}
	return text
}

// The settings that docs/outbox.md says the relay sets are in its code, all of them, and those of
// an address are in an address that the documents or the command line use.
func TestSettingsInTheDocuments(t *testing.T) {
	doc, code := read(t, "docs/outbox.md"), read(t, "outbox/*.go")
	_, table, _ := strings.Cut(doc, "## Settings that matter\n")
	table, prose, _ := strings.Cut(table, "\n## ")
	addresses := prose + read(t, "cmd/delayq/internal/database/*.go", "example/shop/*.go")
	set := make(map[string]bool)
	for _, row := range strings.Split(table, "\n") {
		cells := strings.Split(row, "|")
		if len(cells) < 6 || !strings.Contains(cells[2], "`") {
			continue
		}
		name, _, _ := strings.Cut(strings.Split(cells[2], "`")[1], "(")
		switch who := strings.TrimSpace(cells[4]); who {
		case "the relay":
			require.Contains(t, code, name)
			set[name] = true
		case "the address":
			if strings.Contains(cells[1], "MySQL") { // an option of the driver, which has no address here
				continue
			}
			require.Contains(t, addresses, name)
			set[name] = true
		default:
			require.Equal(t, "the server", who)
		}
	}
	for _, name := range regexp.MustCompile(`\w+_timeout\b`).FindAllString(code, -1) {
		require.True(t, set[name], "%s is not in the table", name)
	}
	require.Len(t, set, 10)
}

// The defaults that docs/outbox.md and the comments name are those of the code.
func TestDefaultsInTheDocuments(t *testing.T) {
	doc, code := read(t, "docs/outbox.md"), read(t, "outbox/relay.go", "outbox/send.go")
	for inDoc, inCode := range map[string]string{
		"10 s by default (`Lease`)":         "lease: 10 * time.Second",
		"every 100 ms (`Poll`)":             "poll: 100 * time.Millisecond",
		"up to 999 rows together (`Batch`)": "batch: mostRows",
		"for 1 s to 30 s":                   "leastAside = time.Second",
		"are dead after an hour":            "const patience = time.Hour",
	} {
		require.Contains(t, strings.Join(strings.Fields(doc), " "), inDoc)
		require.Contains(t, strings.Join(strings.Fields(code), " "), inCode)
	}
	require.Contains(t, code, "mostListed = 1000")
	require.Contains(t, code, "mostAside  = 30 * time.Second")
}
