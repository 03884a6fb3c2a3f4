package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

const rightsFile = "docs/acl/delayq.acl"

// rightsOf is where the rights of a release are kept: a test compares later ones with them.
func rightsOf(version string) string { return "lua/testdata/acl/" + version + ".acl" }

// storedOf is where the data are that a release stores: tests of later ones load them.
func storedOf(version string) string { return "tests/testdata/stored/" + version + ".redis" }

// readmeFiles name the newest version, in English and in Chinese.
var readmeFiles = []string{"README.md", "docs/zh-CN/README.md"}

var status = regexp.MustCompile(`(\*\*(?:Status:|状态：)\*\* )v\d+\.\d+\.\d+`)

// setStatus sets the version that a README names.
func (r *repo) setStatus(file, version string) error {
	text, err := r.read(file)
	if err != nil {
		return err
	}
	if !status.Match(text) {
		return fmt.Errorf("%s has no sentence like %q", file, "**Status:** v0.1.0.")
	}
	return r.write(file, status.ReplaceAll(text, []byte("${1}v"+bare(version))))
}

// canonical returns a version with its v, if it is one that can be released.
func canonical(version string) (string, error) {
	v := "v" + bare(version)
	if !semver.IsValid(v) || semver.Canonical(v) != v || semver.Build(v) != "" {
		return "", fmt.Errorf("VERSION=%q: want three numbers, such as 0.1.0", version)
	}
	if semver.Major(v) != "v0" && semver.Major(v) != "v1" {
		return "", fmt.Errorf("VERSION=%q: the module paths say that the major version is 0 or 1", version)
	}
	return v, nil
}

// A check is something that must hold before a release.
type check struct {
	what string
	do   func() error
}

// check reports all that keeps the clone from being released as a version. Without a version it
// checks what holds for any.
func (r *repo) check(out io.Writer, version string) error {
	checks := []check{
		{"every module stands in go.work, and the released ones require one version of each other", r.checkModules},
		{"the licenses of the dependencies are listed", func() error { return r.licenses(io.Discard, "") }},
		{"incompatible changes of the API are in " + changelogFile, func() error { return r.compareAPI(out) }},
	}
	if version != "" {
		v, err := canonical(version)
		if err != nil {
			return err
		}
		checks = append([]check{
			{"the working tree is clean", r.checkClean},
			{v + " is newer than the last tag", func() error { return r.checkNewer(v) }},
			{"the tests have what " + v + " stores (make stored)", func() error { _, err := r.read(storedOf(v)); return err }},
			{changelogFile + " can be dated", func() error { _, err := r.datedLog(v); return err }},
			{"format, vet, staticcheck and go mod tidy", func() error { _, err := r.do("", "bash", ".ci/lint"); return err }},
			{"the documents are those of the code", func() error { _, err := r.do("", "go", "test", "./docs"); return err }},
		}, checks...)
	}
	var failed []error
	for _, c := range checks {
		if err := c.do(); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", c.what, err))
			fmt.Fprintln(out, "FAIL", c.what)
			continue
		}
		fmt.Fprintln(out, "ok  ", c.what)
	}
	return errors.Join(failed...)
}

func (r *repo) checkClean() error {
	changes, err := r.git("status", "--porcelain")
	if err == nil && changes != "" {
		err = fmt.Errorf("git status --porcelain prints\n%s", changes)
	}
	return err
}

// checkNewer refuses a version that is not newer than the last tag, and a patch release that
// breaks the API.
func (r *repo) checkNewer(version string) error {
	last, err := r.latest()
	if err != nil || last == "" {
		return err
	}
	if !newer(version, last) {
		return fmt.Errorf("the last tag is %s", last)
	}
	if semver.MajorMinor(version) != semver.MajorMinor(last) {
		return nil
	}
	broken, err := r.incompatible(last)
	if err == nil && len(broken) > 0 {
		err = fmt.Errorf("a patch release breaks nothing, and this one does:\n%s", strings.Join(broken, "\n"))
	}
	return err
}

func (r *repo) checkModules() error {
	version, err := r.version()
	if err != nil {
		return err
	}
	work, err := r.work()
	if err != nil {
		return err
	}
	used, replaced := make(map[string]bool), make(map[string]bool)
	for _, use := range work.Use {
		used[use.Path] = true
	}
	for _, one := range work.Replace {
		if one.Old.Version != version {
			return fmt.Errorf("go.work replaces %s, and the modules require %s", one.Old, version)
		}
		replaced[one.Old.Path] = true
	}
	for _, m := range r.modules {
		if folder := "./" + m.folder; !used[folder] && m.folder != "" || m.folder == "" && !used["."] {
			return fmt.Errorf("go.work does not use %s", folder)
		}
		if len(m.file.Replace) > 0 {
			return fmt.Errorf("%s: go.mod has a replace line, which users of the module would not get", m.path())
		}
		for _, req := range m.file.Require {
			if ours(req.Mod.Path) && !replaced[req.Mod.Path] {
				return fmt.Errorf("%s requires %s, which go.work does not replace", m.path(), req.Mod)
			}
		}
	}
	for _, folder := range released {
		m := r.find(folder)
		if m == nil {
			return fmt.Errorf("%s is released and has no go.mod", folder)
		}
		for _, req := range m.file.Require {
			if ours(req.Mod.Path) && !isReleased(req.Mod.Path) {
				return fmt.Errorf("%s requires %s, which gets no tag", m.path(), req.Mod.Path)
			}
		}
	}
	return nil
}

func isReleased(path string) bool {
	for _, folder := range released {
		if path == strings.TrimSuffix(root+"/"+folder, "/") {
			return true
		}
	}
	return false
}

func (r *repo) datedLog(version string) (string, error) {
	log, err := r.read(changelogFile)
	if err != nil {
		return "", err
	}
	return dated(string(log), version, time.Now().UTC())
}

// prepare makes the changes of the release commit, and says what is left to do by hand.
func (r *repo) prepare(out io.Writer, version string) error {
	v, err := canonical(version)
	if err != nil {
		return err
	}
	if err := r.check(out, v); err != nil {
		return err
	}
	log, err := r.datedLog(v)
	if err != nil {
		return err
	}
	rights, err := r.read(rightsFile)
	if err != nil {
		return err
	}
	for _, file := range readmeFiles {
		if err := r.setStatus(file, v); err != nil {
			return err
		}
	}
	if err = errors.Join(r.setVersion(v), r.write(changelogFile, []byte(log)), r.write(rightsOf(v), rights)); err != nil {
		return err
	}
	var tags []string
	for _, folder := range released {
		tags = append(tags, tagOf(folder, v))
	}
	_, err = fmt.Fprintf(out, `
The files are those of %[1]s. Commit them, and let the commit pass CI and reach main:

  git add --all && git commit -m 'Release %[1]s'

Then tag that commit and push the tags, all at once:

  for tag in %[2]s; do git tag -a -m "Release $tag" "$tag" || break; done
  git push --atomic origin %[2]s

Then make the files of the release, and begin the next version:

  make dist
  make next
`, v, strings.Join(tags, " "))
	return err
}
