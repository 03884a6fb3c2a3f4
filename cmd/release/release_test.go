package main

import (
	"archive/zip"
	"bytes"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// toy returns a clone that has the modules of the real one, each with a file of Go.
func toy(t *testing.T) *repo {
	t.Helper()
	dir := t.TempDir()
	for name, value := range map[string]string{
		"GIT_CONFIG_GLOBAL": os.DevNull, "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.com",
		"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.com", "GOWORK": "", "GOFLAGS": "", "GOPROXY": "off",
	} {
		t.Setenv(name, value)
	}
	r := &repo{dir: dir}
	put := func(name, text string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, r.write(name, []byte(text)))
	}
	uses := ""
	for _, folder := range released {
		text := "module " + strings.TrimSuffix(root+"/"+folder, "/") + "\n\ngo 1.25.0\n"
		source := "package p\n\n// F is there.\nfunc F() {}\n"
		if folder != "" {
			text += "\nrequire " + root + " v0.0.9\n"
			source += "\nvar _ = delayq.F\n"
			source = strings.Replace(source, "\n\n", "\n\nimport \""+root+"\"\n\n", 1)
		} else {
			source = strings.Replace(source, "package p", "package delayq", 1)
		}
		put(filepath.Join(folder, "go.mod"), text)
		put(filepath.Join(folder, "p.go"), source)
		uses += "\t./" + folder + "\n"
	}
	put("go.work", "go 1.25.0\n\nuse (\n"+strings.Replace(uses, "./\n", ".\n", 1)+")\n\n"+replacedAt("v0.0.9"))
	put("LICENSE", "SPDX-License-Identifier: MIT\n")
	put("README.md", "# toy\n\n**Status:** v0.0.9. Young.\n")
	put("docs/zh-CN/README.md", "# toy\n\n**状态：** v0.0.9。\n")
	put("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- All.\n")
	put(".ci/lint", "true\n")
	put(storedOf("v0.1.0"), "# 2000-01-01T00:00:00Z\n")
	put(rightsFile, "user delayq-producer\n")
	put(rightsOf("v0.0.9"), "user\n")
	put("docs/docs_test.go", "package docs\n")
	list, err := r.licenseList()
	require.NoError(t, err)
	put(licensesFile, string(list))
	_, err = r.git("init", "-q")
	require.NoError(t, err)
	return committed(t, r)
}

// replacedAt is the end of a go.work that replaces the modules of a version.
func replacedAt(version string) string {
	return "replace (\n\t" + root + " " + version + " => .\n\t" + root + "/prom " + version + " => ./prom\n)\n"
}

// committed commits all of a clone, and opens it again.
func committed(t *testing.T, r *repo) *repo {
	t.Helper()
	_, err := r.git("add", "-A")
	require.NoError(t, err)
	_, err = r.git("commit", "-qm", "x")
	require.NoError(t, err)
	opened, err := openRepo(r.dir)
	require.NoError(t, err)
	return opened
}

func (r *repo) text(t *testing.T, name string) string {
	t.Helper()
	text, err := r.read(name)
	require.NoError(t, err)
	return string(text)
}

// change replaces a text of a file that has it.
func (r *repo) change(t *testing.T, name, old, text string) {
	t.Helper()
	before := r.text(t, name)
	require.Contains(t, before, old)
	require.NoError(t, r.write(name, []byte(strings.ReplaceAll(before, old, text))))
}

func TestReleaseFromCheckToNext(t *testing.T) {
	r := toy(t)
	var out bytes.Buffer
	require.NoError(t, r.prepare(&out, "0.1.0"), &out)
	for _, tag := range []string{"v0.1.0", "prom/v0.1.0", "cmd/delayq/v0.1.0"} {
		require.Contains(t, out.String(), " "+tag)
	}
	require.Contains(t, r.text(t, "prom/go.mod"), "require "+root+" v0.1.0\n")
	require.Contains(t, r.text(t, "go.work"), replacedAt("v0.1.0"))
	require.NotContains(t, r.text(t, "go.work"), "v0.0.9")
	require.Contains(t, r.text(t, "README.md"), "**Status:** v0.1.0. Young.")
	require.Contains(t, r.text(t, "docs/zh-CN/README.md"), "**状态：** v0.1.0。")
	require.Equal(t, "user delayq-producer\n", r.text(t, "lua/testdata/acl/v0.1.0.acl"))
	day := time.Now().UTC().Format(time.DateOnly)
	require.Contains(t, r.text(t, "CHANGELOG.md"), "# Changelog\n\n## [0.1.0] - "+day+"\n\n### Added\n")

	r = committed(t, r)
	require.NoError(t, r.checkModules())
	require.ErrorContains(t, r.next(io.Discard), "the tag v0.1.0 is missing")
	for _, folder := range released {
		_, err := r.git("tag", tagOf(folder, "v0.1.0"))
		require.NoError(t, err)
	}
	require.ErrorContains(t, r.check(io.Discard, "0.2.0"), "no section [Unreleased]")
	require.NoError(t, r.next(io.Discard))
	require.Contains(t, r.text(t, "CHANGELOG.md"), "## [Unreleased]\n\n## [0.1.0]")
	require.ErrorContains(t, r.next(io.Discard), "already")
	require.ErrorContains(t, r.check(io.Discard, "0.2.0"), "git status")
	require.ErrorContains(t, r.check(io.Discard, "0.2.0"), "nothing under [Unreleased]")
	require.ErrorContains(t, r.check(io.Discard, "0.1.0"), "the last tag is v0.1.0")
	require.ErrorContains(t, r.check(io.Discard, "0.2.0"), "make stored")
}

// What breaks users stands in the changelog, and not in a patch release.
func TestAPIOfTheLastTag(t *testing.T) {
	r := toy(t)
	var out bytes.Buffer
	require.NoError(t, r.compareAPI(&out))
	require.Contains(t, out.String(), "no tag yet")
	_, err := r.git("tag", "v0.1.0")
	require.NoError(t, err)

	r.change(t, "p.go", "func F() {}", "func F() {}\n\n// G is new.\nfunc G() {}")
	require.NoError(t, r.compareAPI(io.Discard))
	require.NoError(t, r.checkNewer("v0.1.1"))

	r.change(t, "p.go", "func F() {}", "func F(...int) {}")
	require.ErrorContains(t, r.compareAPI(io.Discard), "F: changed from func() to func(...int)")
	require.ErrorContains(t, r.checkNewer("v0.1.1"), "a patch release breaks nothing")
	require.NoError(t, r.checkNewer("v0.2.0"))
	r.change(t, "CHANGELOG.md", "- All.", "- `delayq.F` takes numbers.")
	require.NoError(t, r.compareAPI(io.Discard))
}

func TestChangesThatTheChangelogNames(t *testing.T) {
	t.Parallel()
	changes := []string{"Client.Move: removed", "./outbox.New: changed from a to b", "package removed"}
	require.Empty(t, unsaid(changes[:2], "- `Client.Move` is gone, and `New(d)` has an argument.\n"))
	require.Equal(t, changes, unsaid(changes, "Move and New without quotes, `Moved`, `Newer`"))
	log := "# C\n\n## [Unreleased]\n\nnew\n\n## [0.2.0] - 2026-12-01\n\nsecond\n\n## [0.1.0] - 2026-11-25\n\nfirst\n"
	require.Contains(t, pending(log, "v0.1.0"), "second")
	require.NotContains(t, pending(log, "v0.1.0"), "first")
	require.Equal(t, log, pending(log, ""))
}

// A module that go.work lacks, a replace line and a second version are each refused.
func TestModulesThatDoNotAgree(t *testing.T) {
	for want, spoil := range map[string]func(r *repo){
		"go.work does not use ./web":           func(r *repo) { r.change(t, "go.work", "\t./web\n", "") },
		"web: go.mod has a replace line":       func(r *repo) { r.change(t, "web/go.mod", "go 1.25.0", "go 1.25.0\n\nreplace "+root+" => ..") },
		"requires v0.0.9 of our modules, and":  func(r *repo) { r.change(t, "web/go.mod", "v0.0.9", "v0.0.8") },
		"go.work replaces":                     func(r *repo) { r.change(t, "go.work", "v0.0.9", "v0.0.8") },
		"the module is example.com/x, and not": func(r *repo) { r.change(t, "web/go.mod", root+"/web", "example.com/x") },
	} {
		r := toy(t)
		require.NoError(t, r.checkModules())
		spoil(r)
		opened, err := openRepo(r.dir)
		if err == nil {
			err = opened.checkModules()
		}
		require.ErrorContains(t, err, want)
	}
}

// The modules of this clone are as a release needs them.
func TestModulesOfThisClone(t *testing.T) {
	t.Parallel()
	r, err := openRepo(".")
	require.NoError(t, err)
	require.NoError(t, r.checkModules())
	for _, file := range readmeFiles {
		require.Regexp(t, status, r.text(t, file))
	}
}

// tidy knows the siblings of the clone, and puts no line of them into a go.sum.
func TestTidyWithSiblings(t *testing.T) {
	r := toy(t)
	require.NoError(t, r.tidy(io.Discard, "-diff"))
	r.change(t, "otel/p.go", "import \""+root+"\"\n", "")
	r.change(t, "otel/p.go", "\nvar _ = delayq.F\n", "")
	require.ErrorContains(t, r.tidy(io.Discard, "-diff"), root+"/otel is not tidy")
	require.Contains(t, r.text(t, "otel/go.mod"), "require")
	require.NoError(t, r.tidy(io.Discard, ""))
	require.Equal(t, "module "+root+"/otel\n\ngo 1.25.0\n", r.text(t, "otel/go.mod"))
	require.Contains(t, r.text(t, "prom/go.mod"), "require "+root+" v0.0.9\n")
	require.NotContains(t, r.text(t, "prom/go.mod"), "replace")
	require.ErrorContains(t, r.tidy(io.Discard, "-x"), "-x")
	require.Equal(t, "a v1 h1:x\n", string(withoutOurs([]byte("a v1 h1:x\n"+root+" v0.1.0 h1:y\n"+root+"/prom v0.1.0/go.mod h1:z\n"))))
}

// A module of the proxy has its own files and the license, and no file of another module.
func TestModulesOfTheProxy(t *testing.T) {
	r := toy(t)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "prom/left.go"), nil, 0o644)) // not committed
	dir := t.TempDir()
	require.NoError(t, r.writeProxy(dir, "HEAD"))
	for path, want := range map[string][]string{
		"prom": {"LICENSE", "go.mod", "p.go"},
		"": {".ci/lint", "CHANGELOG.md", "LICENSE", "README.md", "docs/acl/delayq.acl", "docs/docs_test.go", "docs/licenses.md", "docs/zh-CN/README.md", "go.mod", "go.work",
			"lua/testdata/acl/v0.0.9.acl", "p.go", "tests/testdata/stored/v0.1.0.redis"},
	} {
		at := filepath.Join(dir, root, path, "@v")
		list, err := os.ReadFile(filepath.Join(at, "list"))
		require.NoError(t, err)
		require.Equal(t, "v0.0.9\n", string(list))
		packed, err := zip.OpenReader(filepath.Join(at, "v0.0.9.zip"))
		require.NoError(t, err)
		defer packed.Close()
		var names []string
		for _, one := range packed.File {
			_, name, _ := strings.Cut(one.Name, "@v0.0.9/")
			names = append(names, name)
		}
		slices.Sort(names)
		require.Equal(t, want, names)
	}
}

func TestVersionsThatCanBeReleased(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"", "1", "0.1", "v0.1.0+x", "2.0.0", "01.0.0", "x", "0.1.0 "} {
		_, err := canonical(version)
		require.ErrorContains(t, err, "VERSION=", version)
	}
	for _, version := range []string{"0.1.0", "v0.1.0"} {
		v, err := canonical(version)
		require.NoError(t, err)
		require.Equal(t, "v0.1.0", v)
	}
}

// A dependency without a license, or with one that is not allowed, is refused.
func TestLicensesOfAModule(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := licensesIn(dir)
	require.ErrorContains(t, err, "no license")
	copying := filepath.Join(dir, "COPYING")
	require.NoError(t, os.WriteFile(copying, []byte("https://creativecommons.org/licenses/by/4.0/\n"), 0o644))
	_, err = licensesIn(dir)
	require.ErrorContains(t, err, "CC-BY-4.0")
	require.NoError(t, os.WriteFile(copying, []byte("https://www.apache.org/licenses/LICENSE-2.0\n"), 0o644))
	found, err := licensesIn(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"Apache-2.0"}, found)
}

// The sums are those that `sha256sum --check` reads, and their own file is not among them.
func TestChecksums(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := checksums(dir)
	require.ErrorContains(t, err, "empty")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("abc"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte("old"), 0o644))
	sums, err := checksums(dir)
	require.NoError(t, err)
	require.Equal(t, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n", string(sums))
}

// sources imports packages of the standard library.
func sources() types.Importer { return importer.ForCompiler(token.NewFileSet(), "source", nil) }

// A fragment is held to the types of what it names, and not to what it leaves out.
func TestFragmentsAreChecked(t *testing.T) {
	t.Parallel()
	list := fragments("a.md", "x\n```go\nfunc f(d time.Duration) {\n}\n```\n\n```\nno\n```\n\n```go\nimport e \"errors\"\n\ne.New(1)\nunknown.F(time.Second)\n```\n")
	require.Equal(t, []string{"a.md:3", "a.md:12"}, []string{list[0].where, list[1].where})
	require.NoError(t, checkFragment(list[0], sources()))
	err := checkFragment(list[1], sources())
	require.ErrorContains(t, err, "a.md:12: line")
	require.ErrorContains(t, err, "cannot use 1")
	require.ErrorContains(t, checkFragment(fragment{"a.md:1", "time.Secund()\n"}, sources()), "undefined: time.Secund")
	require.ErrorContains(t, checkFragment(fragment{"a.md:1", "a b c\n"}, sources()), "neither declarations nor statements")
}
