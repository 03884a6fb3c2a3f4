package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// writeProxy writes the released modules of a commit into a folder, as the module proxy serves
// them. Their version is the one that they require of each other.
func (r *repo) writeProxy(dir, commit string) error {
	version, err := r.version()
	if err != nil {
		return err
	}
	files, when, err := r.archive(commit)
	if err != nil {
		return err
	}
	for _, folder := range released {
		m := r.find(folder)
		if m == nil {
			return fmt.Errorf("%s is released and has no go.mod", folder)
		}
		if err := writeModule(dir, module.Version{Path: m.path(), Version: version}, folder, files, when); err != nil {
			return err
		}
	}
	return nil
}

// archive returns the files of a commit by name, and its time.
func (r *repo) archive(commit string) (map[string]*archived, time.Time, error) {
	stamp, err := r.git("show", "--no-patch", "--format=%cI", commit)
	if err != nil {
		return nil, time.Time{}, err
	}
	when, err := time.Parse(time.RFC3339, strings.TrimSpace(stamp))
	if err != nil {
		return nil, time.Time{}, err
	}
	cmd := exec.Command("git", "archive", "--format=tar", commit)
	cmd.Dir = r.dir
	text, err := cmd.Output()
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("git archive %s: %w", commit, err)
	}
	files := make(map[string]*archived)
	for t := tar.NewReader(bytes.NewReader(text)); ; {
		head, err := t.Next()
		if errors.Is(err, io.EOF) {
			return files, when, nil
		}
		if err != nil {
			return nil, time.Time{}, err
		}
		if head.Typeflag != tar.TypeReg {
			continue
		}
		one := &archived{path: head.Name, info: head.FileInfo()}
		if one.text, err = io.ReadAll(t); err != nil {
			return nil, time.Time{}, err
		}
		files[head.Name] = one
	}
}

// An archived is a file of a commit.
type archived struct {
	path string
	info fs.FileInfo
	text []byte
}

func (a *archived) Path() string                 { return a.path }
func (a *archived) Lstat() (fs.FileInfo, error)  { return a.info, nil }
func (a *archived) Open() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(a.text)), nil }

// writeModule writes the files that a module proxy has of a module. Like Go's proxy, it gives a
// module in a folder the LICENSE of the root.
func writeModule(dir string, m module.Version, folder string, files map[string]*archived, when time.Time) error {
	var own []zip.File
	licensed := false
	for name, one := range files {
		path, below := name, true
		if folder != "" {
			path, below = strings.CutPrefix(name, folder+"/")
		}
		if below {
			own = append(own, &archived{path, one.info, one.text})
			licensed = licensed || path == "LICENSE"
		}
	}
	license, goMod := files["LICENSE"], files[filepath.ToSlash(filepath.Join(folder, "go.mod"))]
	if license == nil || goMod == nil {
		return fmt.Errorf("%s: the commit has no LICENSE, or no go.mod", m.Path)
	}
	if !licensed {
		own = append(own, license)
	}
	var packed bytes.Buffer
	if err := zip.Create(&packed, m, own); err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{m.Version, when.UTC()})
	if err != nil {
		return err
	}
	at := filepath.Join(dir, filepath.FromSlash(m.Path), "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"list": []byte(m.Version + "\n"), m.Version + ".info": info, m.Version + ".mod": goMod.text, m.Version + ".zip": packed.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(at, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
