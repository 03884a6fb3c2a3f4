package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
)

// root is the module path of the root; the other modules are below it.
const root = "github.com/delayq/delayq"

// released are the folders of the modules that get a tag, each after those that it requires.
var released = []string{"", "prom", "otel", "outbox", "handlers", "web", "cmd/delayq"}

// A repo is a clone.
type repo struct {
	dir     string   // absolute
	modules []*mod   // by folder
	env     []string // added to that of each command
}

// A mod is a module of the clone.
type mod struct {
	folder string // below the root of the clone, "" for the root
	file   *modfile.File
}

func (m *mod) path() string { return m.file.Module.Mod.Path }

// tagOf returns the tag of a version of the module in a folder.
func tagOf(folder, version string) string {
	if folder == "" {
		return version
	}
	return folder + "/" + version
}

// openRepo returns the clone that contains a folder.
func openRepo(dir string) (*repo, error) {
	top, err := (&repo{dir: dir}).git("rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	r := &repo{dir: strings.TrimSpace(top)}
	list, err := r.git("ls-files", "go.mod", "*/go.mod")
	if err != nil {
		return nil, err
	}
	for name := range strings.Lines(list) {
		name = strings.TrimSpace(name)
		text, err := os.ReadFile(filepath.Join(r.dir, name))
		if errors.Is(err, os.ErrNotExist) { // deleted, and the deletion is not staged
			continue
		}
		if err != nil {
			return nil, err
		}
		file, err := modfile.Parse(name, text, nil)
		if err != nil {
			return nil, err
		}
		folder := filepath.ToSlash(filepath.Dir(name))
		if folder == "." {
			folder = ""
		}
		if want := strings.TrimSuffix(root+"/"+folder, "/"); file.Module.Mod.Path != want {
			return nil, fmt.Errorf("%s: the module is %s, and not %s", name, file.Module.Mod.Path, want)
		}
		r.modules = append(r.modules, &mod{folder, file})
	}
	slices.SortFunc(r.modules, func(a, b *mod) int { return strings.Compare(a.folder, b.folder) })
	return r, nil
}

// find returns the module of a folder, or nil.
func (r *repo) find(folder string) *mod {
	for _, m := range r.modules {
		if m.folder == folder {
			return m
		}
	}
	return nil
}

// ours reports whether a module path is one of this repository.
func ours(path string) bool { return path == root || strings.HasPrefix(path, root+"/") }

// version returns the version that the modules require of each other.
func (r *repo) version() (string, error) {
	version, where := "", ""
	for _, m := range r.modules {
		for _, req := range m.file.Require {
			switch {
			case !ours(req.Mod.Path):
			case version == "":
				version, where = req.Mod.Version, m.folder
			case req.Mod.Version != version:
				return "", fmt.Errorf("%s requires %s of our modules, and %s requires %s", where, version, m.folder, req.Mod)
			}
		}
	}
	if version == "" {
		return "", errors.New("no module requires another one of ours")
	}
	return version, nil
}

// setVersion makes all modules and go.work require a version of ours.
func (r *repo) setVersion(version string) error {
	for _, m := range r.modules {
		for _, req := range slices.Clone(m.file.Require) {
			if !ours(req.Mod.Path) {
				continue
			}
			if err := m.file.AddRequire(req.Mod.Path, version); err != nil {
				return err
			}
		}
		text, err := m.file.Format()
		if err != nil {
			return err
		}
		if err := r.write(filepath.Join(m.folder, "go.mod"), text); err != nil {
			return err
		}
	}
	work, err := r.work()
	if err != nil {
		return err
	}
	for _, one := range work.Replace { // the lines stay where they are
		if i := slices.Index(one.Syntax.Token, one.Old.Version); i >= 0 {
			one.Syntax.Token[i] = version
		}
	}
	return r.write("go.work", modfile.Format(work.Syntax))
}

// work returns go.work.
func (r *repo) work() (*modfile.WorkFile, error) {
	text, err := r.read("go.work")
	if err != nil {
		return nil, err
	}
	return modfile.ParseWork("go.work", text, nil)
}

func (r *repo) read(name string) ([]byte, error) { return os.ReadFile(filepath.Join(r.dir, name)) }

func (r *repo) write(name string, text []byte) error {
	old, err := r.read(name)
	if err == nil && bytes.Equal(old, text) {
		return nil
	}
	return os.WriteFile(filepath.Join(r.dir, name), text, 0o644)
}

// git returns what a command of git prints.
func (r *repo) git(args ...string) (string, error) { return r.do("", "git", args...) }

// do runs a command in a folder of the clone, and returns what it prints.
func (r *repo) do(folder, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = filepath.Join(r.dir, folder)
	cmd.Env = append(os.Environ(), r.env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		where := folder
		if where == "" {
			where = "the root"
		}
		return out.String(), fmt.Errorf("%s %s in %s: %w\n%s%s", name, strings.Join(args, " "), where, err, out.String(), errs.String())
	}
	return out.String(), nil
}

// latest returns the newest tag of the root that is not newer than HEAD, or "".
func (r *repo) latest() (string, error) {
	list, err := r.git("tag", "--list", "v*", "--merged", "HEAD")
	if err != nil {
		return "", err
	}
	newest := ""
	for tag := range strings.Lines(list) {
		if tag = strings.TrimSpace(tag); module.CanonicalVersion(tag) == tag && newer(tag, newest) {
			newest = tag
		}
	}
	return newest, nil
}
