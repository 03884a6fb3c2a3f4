package docs_test

import (
	"go/ast"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// What a topic may not have in its name is said in several places, and each says all of it.
func TestForbiddenCharactersAreSaid(t *testing.T) {
	t.Parallel()
	var forbidden []string
	for c := rune(' '); c < 127; c++ {
		if script.CheckName("topic", "a"+string(c)) != nil {
			forbidden = append(forbidden, string(c))
		}
	}
	require.Greater(t, len(forbidden), 3)
	list := regexp.MustCompile("without ([^a-z]+) and control characters")
	for _, document := range []string{"client.go", "docs/features.md", "docs/protocol.md"} {
		text := strings.Join(strings.Fields(strings.ReplaceAll(proseFile(t, document), "\n//", "\n")), " ")
		found := list.FindAllStringSubmatch(text, -1)
		require.NotEmpty(t, found, document)
		for _, m := range found {
			said := strings.Split(strings.ReplaceAll(m[1], "`", ""), ", ")
			require.ElementsMatch(t, forbidden, said, document)
		}
	}
	err := script.CheckName("topic", "a#")
	for _, c := range forbidden {
		require.ErrorContains(t, err, c)
	}
}

// The package doc lists all job options but those for bridges to other systems.
func TestJobOptionsAreListed(t *testing.T) {
	t.Parallel()
	text := proseFile(t, "doc.go")
	_, text, _ = strings.Cut(text, "Job options\n")
	text, _, _ = strings.Cut(text, "are passed to")
	var listed, options []string
	for _, m := range regexp.MustCompile(`\[(\w+)\]`).FindAllStringSubmatch(text, -1) {
		listed = append(listed, m[1])
	}
	for _, file := range proseGo(t) {
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !f.Name.IsExported() || f.Type.Results == nil {
				continue
			}
			of, ok := f.Type.Results.List[0].Type.(*ast.Ident)
			if ok && slices.Contains([]string{"JobOption", "DueOption"}, of.Name) && f.Name.Name != "OptionalHeaders" {
				options = append(options, f.Name.Name)
			}
		}
	}
	require.ElementsMatch(t, options, listed)
}

// Every name of a heartbeat is in the table of the protocol.
func TestHeartbeatsAreListed(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(proseFile(t, "docs/protocol.md"), "### Heartbeats\n")
	table, _, _ = strings.Cut(table, "\n### ")
	said := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| (.+?) \|(.*)$`).FindAllStringSubmatch(table, -1) {
		for _, name := range regexp.MustCompile(`\w+`).FindAllString(row[1], -1) {
			said[name] = true
		}
		for _, m := range regexp.MustCompile(`"(\w+)"`).FindAllStringSubmatch(row[2], -1) {
			said[m[1]] = true // of an object in an object
		}
	}
	names := regexp.MustCompile("`?json:\"(\\w+)").FindAllStringSubmatch(proseFile(t, "internal/record/heartbeat.go"), -1)
	require.Greater(t, len(names), 15)
	for _, m := range names {
		require.Contains(t, said, m[1])
	}
}

// A bulk act has the name of the call that does the same with one job. Cancelling keeps the name of
// the first release for one job, and to run a job now is to reschedule it.
func TestBulkActsHaveTheNamesOfSingleOnes(t *testing.T) {
	t.Parallel()
	var acts []string
	of := map[string]bool{} // methods of Client
	for _, file := range proseGo(t) {
		for _, decl := range file.Decls {
			f, is := decl.(*ast.FuncDecl)
			switch {
			case !is:
			case f.Recv == nil && f.Type.Results != nil && len(f.Type.Results.List) == 1:
				if id, is := f.Type.Results.List[0].Type.(*ast.Ident); is && id.Name == "Action" {
					acts = append(acts, f.Name.Name)
				}
			case f.Recv != nil:
				if star, is := f.Recv.List[0].Type.(*ast.StarExpr); is {
					if id, is := star.X.(*ast.Ident); is && id.Name == "Client" {
						of[f.Name.Name] = true
					}
				}
			}
		}
	}
	require.Greater(t, len(acts), 4)
	for _, act := range acts {
		require.True(t, of[act] || of[act+"Batch"] || act == "RunNow", act)
	}
}

// No test makes a client of go-redis with the default address, which is a name: see
// redistest.Unused.
func TestClientsOfTestsLookUpNoName(t *testing.T) {
	made := regexp.MustCompile(`redis\.NewClient\(&redis\.Options\{([^{}]*)`)
	found := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, client := range made.FindAllStringSubmatch(redistest.File(t, path), -1) {
			found++
			require.Contains(t, client[1], "Addr:", path)
		}
		return nil
	}))
	require.Greater(t, found, 20)
}
