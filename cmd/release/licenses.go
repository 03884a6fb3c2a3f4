package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// licensesFile lists the licenses of what programs that use the released modules are built from.
const licensesFile = "docs/licenses.md"

const licensesHead = `# Licenses of dependencies

On Linux, these modules are built into programs that use the released modules of delayq. The tool
[licensecheck](https://github.com/google/licensecheck) has read the files of their licenses. What
only tests need is not here. "The library" is the root with ` + "`delayqtest`" + `, which alone needs
miniredis and gopher-lua. ` + "`make licenses`" + ` writes this file.

`

// allowed are the licenses that a dependency can have.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0"}

var licenseName = regexp.MustCompile(`(?i)^(licen[cs]e|copying)([-.].*)?$`)

// licenses compares docs/licenses.md with the dependencies. With -write it writes the file.
func (r *repo) licenses(out io.Writer, flag string) error {
	if flag != "" && flag != "-write" {
		return fmt.Errorf("licenses %s: the only flag is -write", flag)
	}
	text, err := r.licenseList()
	if err != nil {
		return err
	}
	if flag != "" {
		return r.write(licensesFile, text)
	}
	old, err := r.read(licensesFile)
	if err != nil {
		return err
	}
	if !bytes.Equal(old, text) {
		return errors.New(licensesFile + " is not that of the dependencies (make licenses)")
	}
	_, err = fmt.Fprintln(out, licensesFile, "is that of the dependencies")
	return err
}

// A dependency is a module that is built into programs of users.
type dependency struct {
	dir  string
	uses []string // the released modules that need it
}

func (r *repo) licenseList() ([]byte, error) {
	needed := make(map[string]*dependency)
	for _, folder := range released {
		imported, err := r.importable(folder)
		if err != nil {
			return nil, err
		}
		args := append([]string{"list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Dir}}{{end}}"}, imported...)
		list, err := r.do(folder, "go", args...)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(list) {
			path, dir, ok := strings.Cut(strings.TrimSpace(line), " ")
			if !ok || ours(path) {
				continue
			}
			if needed[path] == nil {
				needed[path] = &dependency{dir: dir}
			}
			name := cmp.Or(folder, "the library")
			if one := needed[path]; !slices.Contains(one.uses, name) {
				one.uses = append(one.uses, name)
			}
		}
	}
	var paths []string
	for path := range needed {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	text := bytes.NewBufferString(licensesHead + "| module | license | needed by |\n| --- | --- | --- |\n")
	for _, path := range paths {
		found, err := licensesIn(needed[path].dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		fmt.Fprintf(text, "| %s | %s | %s |\n", path, strings.Join(found, ", "), strings.Join(needed[path].uses, ", "))
	}
	return text.Bytes(), nil
}

// importable returns the packages of a module that users can import, or build.
func (r *repo) importable(folder string) (list []string, err error) {
	all, err := r.do(folder, "go", "list", "./...")
	if err != nil {
		return nil, err
	}
	for path := range strings.Lines(all) {
		if path = strings.TrimSpace(path); !isInternal(path) {
			list = append(list, path)
		}
	}
	return list, nil
}

// licensesIn returns the licenses of a module, of those that are allowed.
func licensesIn(dir string) (found []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if entry.IsDir() || !licenseName.MatchString(entry.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		for _, match := range licensecheck.Scan(text).Match {
			if !slices.Contains(found, match.ID) {
				found = append(found, match.ID)
			}
		}
	}
	if len(found) == 0 {
		return nil, errors.New("it has no license that is known")
	}
	for _, id := range found {
		if !slices.Contains(allowed, id) {
			return nil, fmt.Errorf("its license is %s; allowed are %s", id, strings.Join(allowed, ", "))
		}
	}
	return found, nil
}
