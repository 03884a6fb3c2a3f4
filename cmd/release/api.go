package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/exp/apidiff"
	"golang.org/x/tools/go/packages"
)

// compareAPI compares the exported API of the released modules with that of the last tag. It fails
// if an incompatible change is not in the changelog.
func (r *repo) compareAPI(out io.Writer) error {
	last, err := r.latest()
	if err != nil {
		return err
	}
	if last == "" {
		_, err := fmt.Fprintln(out, "api: there is no tag yet, so there is nothing to compare with")
		return err
	}
	broken, err := r.incompatible(last)
	if err != nil {
		return err
	}
	log, err := r.read(changelogFile)
	if err != nil {
		return err
	}
	missing := unsaid(broken, pending(string(log), last))
	fmt.Fprintf(out, "api: %d incompatible changes since %s\n", len(broken), last)
	for _, one := range broken {
		fmt.Fprintln(out, "  ", one)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s does not name, above the section of %s, what these changes break:\n%s",
			changelogFile, last, strings.Join(missing, "\n"))
	}
	return nil
}

var (
	quoted = regexp.MustCompile("`[^`]+`")
	word   = regexp.MustCompile(`\w+`)
)

// unsaid returns the changes whose names are in no quotes of a text.
func unsaid(changes []string, text string) (missing []string) {
	said := make(map[string]bool)
	for _, quote := range quoted.FindAllString(text, -1) {
		for _, name := range word.FindAllString(quote, -1) {
			said[name] = true
		}
	}
	for _, change := range changes {
		name, _, _ := strings.Cut(change, ": ") // package.Type.Method
		words := word.FindAllString(name, -1)
		if len(words) == 0 || !said[words[len(words)-1]] {
			missing = append(missing, change)
		}
	}
	return missing
}

// incompatible returns the incompatible changes of the exported API between a tag and the working
// tree, as apidiff words them.
func (r *repo) incompatible(tag string) (list []string, err error) {
	files, _, err := r.archive(tag)
	if err != nil {
		return nil, err
	}
	old, err := os.MkdirTemp("", "api")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(old)
	for name, one := range files {
		path := filepath.Join(old, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, one.text, 0o644); err != nil {
			return nil, err
		}
	}
	for _, folder := range released {
		if files[filepath.ToSlash(filepath.Join(folder, "go.mod"))] == nil {
			continue // a new module breaks nobody
		}
		m := r.find(folder)
		if m == nil {
			list = append(list, fmt.Sprintf("%s/%s: module removed", root, folder))
			continue
		}
		before, err := r.exported(filepath.Join(old, folder), m.path())
		if err != nil {
			return nil, fmt.Errorf("%s at %s: %w", m.path(), tag, err)
		}
		after, err := r.exported(filepath.Join(r.dir, folder), m.path())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.path(), err)
		}
		var text bytes.Buffer
		report := apidiff.ModuleChanges(before, after)
		if err := report.TextIncompatible(&text, false); err != nil {
			return nil, err
		}
		for line := range strings.Lines(text.String()) {
			list = append(list, strings.TrimPrefix(strings.TrimSpace(line), "- "))
		}
	}
	return list, nil
}

// exported returns the packages of a module that users can import.
func (r *repo) exported(dir, path string) (*apidiff.Module, error) {
	loaded, err := packages.Load(&packages.Config{
		Dir: dir, Mode: packages.LoadTypes, Env: append(os.Environ(), r.env...),
	}, "./...")
	if err != nil {
		return nil, err
	}
	m := &apidiff.Module{Path: path}
	for _, one := range loaded {
		if len(one.Errors) > 0 {
			return nil, one.Errors[0]
		}
		if one.Name != "main" && !isInternal(one.PkgPath) {
			m.Packages = append(m.Packages, one.Types)
		}
	}
	return m, nil
}

// isInternal reports whether users cannot import a package, or are not meant to: examples and what
// tests run.
func isInternal(path string) bool {
	rest := strings.TrimPrefix(path, root+"/")
	return strings.Contains("/"+rest+"/", "/internal/") || strings.Contains(rest, "/e2e/") || strings.HasPrefix(rest, "example/") || rest == "tests" || rest == "lua"
}
