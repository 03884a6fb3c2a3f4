package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// programs are the commands that are distributed, by the names of their files. delayqd is delayq
// with what runs for ever.
var programs = map[string]string{"delayq": root + "/cmd/delayq", "delayqd": root + "/cmd/delayq/delayqd"}

// Tools that make the files of a release.
const (
	nfpm = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2"
	sbom = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0"
)

// architectures are those of the files of a release, for Linux.
var architectures = []string{"amd64", "arm64"}

// dist writes the files of a release into a folder: for each architecture the programs, their SBOMs
// and their Debian package, and the checksums of all. The modules come from HEAD, as a user's would
// from the module proxy, so everyone who has Go can repeat the build from the tag and compare.
func (r *repo) dist(out io.Writer, dir string) error {
	if err := r.checkClean(); err != nil {
		return fmt.Errorf("the files are those of a commit: %w", err)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, arch := range architectures {
		if err := r.distFor(dir, arch); err != nil {
			return err
		}
	}
	sums, err := checksums(dir)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "SHA256SUMS"), sums, 0o644); err != nil {
		return err
	}
	_, err = out.Write(sums)
	return err
}

// distFor writes the files of an architecture.
func (r *repo) distFor(dir, arch string) error {
	version, err := r.version()
	if err != nil {
		return err
	}
	for _, program := range slices.Sorted(maps.Keys(programs)) {
		name := filepath.Join(dir, fmt.Sprintf("%s_%s_linux_%s", program, bare(version), arch))
		var builds [2][]byte
		for i := range builds { // the second build shares no cache and no folder with the first one
			if builds[i], err = r.build(program, arch, true); err != nil {
				return err
			}
		}
		if !bytes.Equal(builds[0], builds[1]) {
			return fmt.Errorf("two builds of %s for %s differ", program, arch)
		}
		if err := os.WriteFile(name, builds[0], 0o755); err != nil {
			return err
		}
		if _, err := r.tool(sbom, "bin", "-json", "-noserial", "-licenses", "-output", name+".cdx.json", name); err != nil {
			return err
		}
	}
	return r.debian(dir, bare(version), arch)
}

// build returns a program as go install makes it from the modules of HEAD, for Linux. A fresh one
// shares nothing with other builds but the downloaded files of the dependencies.
func (r *repo) build(program, arch string, fresh bool) ([]byte, error) {
	version, err := r.version()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "build")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	env, err := r.fetching(dir)
	if err != nil {
		return nil, err
	}
	alone := *r
	alone.env = append(env, "GOOS=linux", "GOARCH="+arch)
	if fresh {
		alone.env = append(alone.env, "GOCACHE="+filepath.Join(dir, "cache"))
	}
	if _, err := alone.do("", "go", "install", "-trimpath", "-ldflags=-s", programs[program]+"@"+version); err != nil {
		return nil, err
	}
	built := filepath.Join(dir, "go", "bin")
	if arch != runtime.GOARCH || runtime.GOOS != "linux" {
		built = filepath.Join(built, "linux_"+arch)
	}
	return os.ReadFile(filepath.Join(built, program))
}

// fetching returns the environment of somebody who has Go, and for whom the module proxy has the
// modules of HEAD. All of it is in a folder, except for the files of dependencies that are on this
// machine already.
func (r *repo) fetching(dir string) ([]string, error) {
	proxy := filepath.Join(dir, "proxy")
	if err := r.writeProxy(proxy, "HEAD"); err != nil {
		return nil, err
	}
	cache, err := r.do("", "go", "env", "GOMODCACHE")
	if err != nil {
		return nil, err
	}
	usual, err := r.do("", "go", "env", "GOPROXY")
	if err != nil {
		return nil, err
	}
	return []string{
		"GOPROXY=file://" + proxy + ",file://" + strings.TrimSpace(cache) + "/cache/download," + strings.TrimSpace(usual),
		"GOPATH=" + filepath.Join(dir, "go"), "GOMODCACHE=", "GOBIN=",
		"GOFLAGS=-modcacherw", // so that the folder can be removed
		"GOSUMDB=off",         // it cannot know a version that has no tag yet
		"GOWORK=off", "CGO_ENABLED=0",
	}, nil
}

// tool runs a program of a module that is none of ours.
func (r *repo) tool(name string, args ...string) (string, error) {
	alone := *r
	alone.env = append(slices.Clone(alone.env), "GOWORK=off")
	return alone.do("", "go", append([]string{"run", name}, args...)...)
}

// debian writes the Debian package of the programs in a folder.
func (r *repo) debian(dir, version, arch string) error {
	stage, err := os.MkdirTemp("", "deb")
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)
	stamp, err := r.git("show", "--no-patch", "--format=%ct", "HEAD")
	if err != nil {
		return err
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		// The completion is the same for each architecture; the program of this machine writes it.
		for name, path := range map[string]string{"delayq": ".", "delayqd": "./delayqd"} {
			text, err := r.do("cmd/delayq", "go", "run", path, "completion", shell)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(stage, name+"."+shell), []byte(text), 0o644); err != nil {
				return err
			}
		}
	}
	unit, err := r.read("deploy/delayq-worker.service")
	if err != nil {
		return err
	}
	unit = bytes.ReplaceAll(unit, []byte("/usr/local/bin/delayqd"), []byte("/usr/bin/delayqd"))
	if err := os.WriteFile(filepath.Join(stage, "delayq-worker.service"), unit, 0o644); err != nil {
		return err
	}
	alone := *r
	alone.env = []string{"SOURCE_DATE_EPOCH=" + strings.TrimSpace(stamp), "VERSION=" + version, "ARCH=" + arch,
		"PROGRAMS=" + dir, "STAGE=" + stage}
	_, err = alone.tool(nfpm, "package", "--config", "deploy/nfpm.yaml", "--packager", "deb", "--target",
		filepath.Join(dir, fmt.Sprintf("delayq_%s_%s.deb", version, arch)))
	return err
}

// checksums returns the SHA-256 of each file of a folder, as sha256sum prints them.
func checksums(dir string) ([]byte, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var sums bytes.Buffer
	for _, entry := range entries {
		if entry.Name() == "SHA256SUMS" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(text), entry.Name())
	}
	if sums.Len() == 0 {
		return nil, errors.New("the folder is empty")
	}
	return sums.Bytes(), nil
}
