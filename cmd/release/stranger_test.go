package main

import (
	"bytes"
	"encoding/json"
	"go/importer"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A stranger is somebody who has Go and no clone. The proxy has the modules of HEAD at the version
// that they require of each other.
type stranger struct {
	t       *testing.T
	repo    *repo                // of the clone
	files   map[string]*archived // of HEAD
	version string
	dir     string // a fresh folder
	env     []string
}

func newStranger(t *testing.T) *stranger {
	r, err := openRepo(".")
	require.NoError(t, err)
	version, err := r.version()
	require.NoError(t, err)
	s := &stranger{t: t, repo: r, version: version, dir: t.TempDir()}
	s.files, _, err = r.archive("HEAD")
	require.NoError(t, err)
	env, err := r.fetching(s.dir)
	require.NoError(t, err)
	s.env = append(os.Environ(), env...)
	return s
}

// in runs a command in a folder of the stranger, and returns what it prints.
func (s *stranger) in(folder, name string, args ...string) string {
	s.t.Helper()
	dir := filepath.Join(s.dir, folder)
	require.NoError(s.t, os.MkdirAll(dir, 0o755))
	cmd := exec.CommandContext(s.t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, s.env
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(s.t, err, "%s %s\n%s%s", name, args, out, &errs)
	return string(out)
}

// file returns a file of the commit.
func (s *stranger) file(name string) string {
	s.t.Helper()
	require.Contains(s.t, s.files, name)
	return string(s.files[name].text)
}

// write writes a file of the stranger.
func (s *stranger) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	require.NoError(s.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(s.t, os.WriteFile(path, []byte(text), 0o644))
}

// A user fetches the modules and builds what the documents show.
func TestStranger(t *testing.T) {
	s := newStranger(t)

	t.Run("the program of the README, as the README says", func(t *testing.T) {
		s.t = t
		blocks := fragments("README.md", s.file("README.md"))
		require.NotEmpty(t, blocks)
		s.write("shop/main.go", blocks[0].code)
		s.in("shop", "go", "mod", "init", "shop")
		s.in("shop", "go", "mod", "tidy")
		s.in("shop", "go", "build", "-trimpath")
		require.Equal(t, s.version+"\n", s.in("shop", "go", "list", "-m", "-f", "{{.Version}}", root))
	})

	t.Run("each module, and the code of the documents", func(t *testing.T) {
		s.t = t
		s.in("app", "go", "mod", "init", "app")
		var wanted []string
		for _, folder := range released {
			wanted = append(wanted, s.repo.find(folder).path()+"@"+s.version)
		}
		s.in("app", "go", append([]string{"get"}, wanted...)...)
		s.programs("app")
		s.in("app", "go", "mod", "tidy")
		s.in("app", "go", "vet", "-trimpath", "./...")
		s.fragments("app")
		for _, line := range strings.Split(strings.TrimSpace(s.in("app", "go", "list", "-m", "all")), "\n") {
			if path, version, _ := strings.Cut(line, " "); ours(path) {
				require.Equal(t, s.version, version, path)
			}
		}
	})

	t.Run("the command line", func(t *testing.T) {
		s.t = t
		for name, path := range programs {
			s.in("", "go", "install", "-trimpath", "-ldflags=-s", path+"@"+s.version)
			var said struct{ Version, Sum string }
			installed := filepath.Join(s.dir, "go", "bin", name)
			require.NoError(t, json.Unmarshal([]byte(s.in("", installed, "version", "-o", "json")), &said))
			require.Equal(t, s.version, said.Version)
			require.Regexp(t, "^h1:", said.Sum)
			s.sameAsClone(installed, strings.Replace(path, root+"/cmd/delayq", ".", 1))

			// Whoever repeats the build gets the same bytes. The short test takes compiled packages
			// from the build cache; the long one, and make dist, compile all of them anew.
			text, err := os.ReadFile(installed)
			require.NoError(t, err)
			again, err := s.repo.build(name, runtime.GOARCH, !testing.Short())
			require.NoError(t, err)
			require.True(t, bytes.Equal(text, again), "two builds of %s differ", name)
			if name == "delayq" { // it is what operates, and is fetched to every desk
				require.Less(t, len(text), 25_000_000)
			}
		}
	})
}

// programs writes programs of the documents and the examples into a module of the stranger.
func (s *stranger) programs(folder string) {
	s.t.Helper()
	for at, block := range fragments("docs/tutorial.md", s.file("docs/tutorial.md")) {
		s.write(filepath.Join(folder, "tutorial", []string{"main.go", "main_test.go"}[at]), block.code)
	}
	every := "package app\n\nimport (\n" // what fragments use, so that tidy keeps it
	for _, path := range slices.Sorted(maps.Values(imports)) {
		every += "\t_ \"" + path + "\"\n"
	}
	s.write(filepath.Join(folder, "all.go"), every+")\n")

	// Nobody takes four ORMs at a time, and the shop starts PostgreSQL with a helper of our tests.
	left := []string{"orms", "shop"}
	for name, one := range s.files {
		parts := strings.Split(name, "/")
		if parts[0] != "example" || len(parts) < 3 || slices.Contains(left, parts[1]) ||
			strings.HasSuffix(name, "_test.go") || strings.HasPrefix(parts[2], "go.") {
			continue
		}
		s.write(filepath.Join(folder, name), strings.ReplaceAll(string(one.text), root+"/example/", "app/example/"))
	}
}

// fragments checks the Go of all documents for users.
func (s *stranger) fragments(folder string) {
	s.t.Helper()
	exports := make(map[string]string)
	args := append([]string{"list", "-trimpath", "-deps", "-export", "-f", "{{.ImportPath}} {{.Export}}"}, slices.Sorted(maps.Values(imports))...)
	for line := range strings.Lines(s.in(folder, "go", args...)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	from := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	checked := 0
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		if dir := filepath.Dir(name); name != "README.md" && dir != "docs" && dir != "docs/howto" || filepath.Ext(name) != ".md" {
			continue
		}
		for _, block := range fragments(name, s.file(name)) {
			if err := checkFragment(block, from); err != nil {
				s.t.Error(err)
			}
			checked++
		}
	}
	require.Greater(s.t, checked, 50)
}

var dependencyLine = regexp.MustCompile(`(?m)^\tdep\t(\S+)\t(\S+)\t.*$`)

// sameAsClone compares the dependencies of an installed program with those that a clone builds the
// program with, from a folder of cmd/delayq: what is tested there is what users get.
func (s *stranger) sameAsClone(installed, folder string) {
	s.t.Helper()
	var got []string
	for _, m := range dependencyLine.FindAllStringSubmatch(s.in("", "go", "version", "-m", installed), -1) {
		if !ours(m[1]) {
			got = append(got, m[1]+" "+m[2])
		}
	}
	alone := *s.repo
	alone.env = []string{"CGO_ENABLED=0"}
	list, err := alone.do("cmd/delayq", "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}", folder)
	require.NoError(s.t, err)
	var want []string
	for line := range strings.Lines(list) {
		if line = strings.TrimSpace(line); line != "" && !ours(strings.Fields(line)[0]) {
			want = append(want, line)
		}
	}
	slices.Sort(want)
	require.NotEmpty(s.t, want)
	require.Equal(s.t, slices.Compact(want), got)
}
