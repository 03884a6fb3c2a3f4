package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/modfile"
)

// tidy runs `go mod tidy` in each module. Go asks the proxy for the siblings there, and not
// go.work, and the version that they have here may not be released yet. So it runs with a copy of
// go.mod that replaces them. With -diff it changes nothing, and reports what it would change.
//
// A go.sum has no line of our own modules. Go asks for none: a clone takes them from go.work, and a
// user's module has a go.sum of its own.
func (r *repo) tidy(out io.Writer, flag string) error {
	if flag != "" && flag != "-diff" {
		return fmt.Errorf("tidy %s: the only flag is -diff", flag)
	}
	var untidy []error
	for _, m := range r.modules {
		if err := r.tidyOne(out, m, flag == "-diff"); err != nil {
			untidy = append(untidy, err)
		}
	}
	return errors.Join(untidy...)
}

func (r *repo) tidyOne(out io.Writer, m *mod, diff bool) error {
	if len(m.file.Replace) > 0 {
		return fmt.Errorf("%s: go.mod has a replace line, which users of the module would not get", m.path())
	}
	copies, err := os.MkdirTemp("", "tidy")
	if err != nil {
		return err
	}
	defer os.RemoveAll(copies)
	name, sums := filepath.Join(m.folder, "go.mod"), filepath.Join(m.folder, "go.sum")
	before, err := r.read(name)
	if err != nil {
		return err
	}
	file, err := modfile.Parse(name, before, nil)
	if err != nil {
		return err
	}
	for _, sibling := range r.modules {
		if err := file.AddReplace(sibling.path(), "", filepath.Join(r.dir, sibling.folder), ""); err != nil {
			return err
		}
	}
	text, err := file.Format()
	if err != nil {
		return err
	}
	sum, err := r.read(sums)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	modCopy, sumCopy := filepath.Join(copies, "go.mod"), filepath.Join(copies, "go.sum")
	if err := errors.Join(os.WriteFile(modCopy, text, 0o644), os.WriteFile(sumCopy, sum, 0o644)); err != nil {
		return err
	}
	args := []string{"mod", "tidy", "-modfile", modCopy}
	if diff {
		args = append(args, "-diff")
	}
	alone := *r
	alone.env = append(alone.env, "GOWORK=off")
	printed, err := alone.do(m.folder, "go", args...)
	if err != nil {
		return fmt.Errorf("%s is not tidy (make tidy): %w", m.path(), err)
	}
	fmt.Fprint(out, printed)
	if diff {
		return nil
	}
	return r.takeTidied(name, sums, modCopy, sumCopy)
}

// takeTidied writes the files that tidy has made, without the lines that were only for it.
func (r *repo) takeTidied(name, sums, modCopy, sumCopy string) error {
	text, err := os.ReadFile(modCopy)
	if err != nil {
		return err
	}
	file, err := modfile.Parse(name, text, nil)
	if err != nil {
		return err
	}
	for _, one := range file.Replace {
		if err := file.DropReplace(one.Old.Path, one.Old.Version); err != nil {
			return err
		}
	}
	file.Cleanup()
	if text, err = file.Format(); err != nil {
		return err
	}
	sum, err := os.ReadFile(sumCopy)
	if err != nil {
		return err
	}
	return errors.Join(r.write(name, text), r.write(sums, withoutOurs(sum)))
}

// withoutOurs returns a go.sum without lines of our own modules.
func withoutOurs(sum []byte) []byte {
	var kept strings.Builder
	for line := range strings.Lines(string(sum)) {
		if path, _, _ := strings.Cut(line, " "); !ours(path) {
			kept.WriteString(line)
		}
	}
	return []byte(kept.String())
}
