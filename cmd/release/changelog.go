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

const (
	changelogFile = "CHANGELOG.md"
	unreleased    = "## [Unreleased]\n"
)

var heading = regexp.MustCompile(`(?m)^## \[(.+?)\].*\n`)

// newer reports whether version a is newer than version b, which can be empty.
func newer(a, b string) bool { return semver.Compare(a, b) > 0 }

// section returns what stands under a heading of the changelog, and false if there is no such
// heading. The name is that of a version without its v, or Unreleased.
func section(log, name string) (string, bool) {
	at := heading.FindAllStringSubmatchIndex(log, -1)
	for i, m := range at {
		if log[m[2]:m[3]] != name {
			continue
		}
		end := len(log)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		return strings.TrimSpace(log[m[1]:end]), true
	}
	return "", false
}

// dated returns the changelog with its unreleased section as that of a version.
func dated(log, version string, day time.Time) (string, error) {
	text, ok := section(log, "Unreleased")
	switch {
	case !ok:
		return "", errors.New(changelogFile + " has no section [Unreleased]")
	case text == "":
		return "", errors.New(changelogFile + " says nothing under [Unreleased]")
	}
	if _, again := section(log, bare(version)); again {
		return "", fmt.Errorf("%s has a section [%s] already", changelogFile, bare(version))
	}
	title := fmt.Sprintf("## [%s] - %s\n", bare(version), day.Format(time.DateOnly))
	return strings.Replace(log, unreleased, title, 1), nil
}

// begun returns the changelog with an empty unreleased section above the others.
func begun(log string) (string, error) {
	if _, already := section(log, "Unreleased"); already {
		return "", errors.New(changelogFile + " has a section [Unreleased] already")
	}
	at := heading.FindStringIndex(log)
	if at == nil {
		return "", errors.New(changelogFile + " has no section")
	}
	return log[:at[0]] + unreleased + "\n" + log[at[0]:], nil
}

// pending returns what the changelog says of changes since the last tag: all sections above it.
func pending(log, tag string) string {
	if tag == "" {
		return log
	}
	for _, m := range heading.FindAllStringSubmatchIndex(log, -1) {
		if log[m[2]:m[3]] == bare(tag) {
			return log[:m[0]]
		}
	}
	return log
}

// bare returns a version without its v.
func bare(version string) string { return strings.TrimPrefix(version, "v") }

// next begins the section of the next version. The go.mod files keep the released version, so that
// each commit of main can be fetched.
func (r *repo) next(out io.Writer) error {
	version, err := r.version()
	if err != nil {
		return err
	}
	for _, folder := range released {
		if _, err := r.git("rev-parse", "--verify", "--quiet", "refs/tags/"+tagOf(folder, version)); err != nil {
			return fmt.Errorf("the tag %s is missing: a version begins when the last one has its tags", tagOf(folder, version))
		}
	}
	log, err := r.read(changelogFile)
	if err != nil {
		return err
	}
	text, err := begun(string(log))
	if err != nil {
		return err
	}
	if err := r.write(changelogFile, []byte(text)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s has a section [Unreleased]. Commit it:\n\n  git commit -am 'Begin after %s'\n", changelogFile, bare(version))
	return err
}
