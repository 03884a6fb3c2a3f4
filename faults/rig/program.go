package rig

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// StartProgram starts another program than this one, for example a build of an earlier release. It
// gets the configuration of a worker as the test binary does, and is one if it calls [WorkerMain].
// args are further ones. Start it again with StartProgram, not with [Worker.Start]. rec notes the
// faults that are done to it.
func StartProgram(path string, c WorkerConfig, rec *Recorder, args ...string) (*Worker, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	w := &Worker{c: c, rec: rec, out: filepath.Join(c.Dir, c.Name+".log"), ended: make(chan struct{})}
	out, err := os.OpenFile(w.out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	w.cmd = exec.Command(path, args...) //nolint:gosec // a program that the caller has built
	w.cmd.Env = os.Environ()
	if len(args) == 0 {
		w.cmd.Env = append(w.cmd.Env, workerEnv+"="+string(text))
	}
	w.cmd.Stdout, w.cmd.Stderr = out, out
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s of %s: %w", c.Name, path, err)
	}
	go func() {
		_ = w.cmd.Wait() // how it ended is for the caller to judge
		close(w.ended)
	}()
	return w, nil
}
