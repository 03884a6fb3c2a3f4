package redistest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

// reaperScript waits until the write end of its standard input closes, which happens whenever and
// however this process ends. Then it removes the directories of the servers that lived as long as
// the process. Where the kernel does not kill the servers, the script does. It first checks that
// the process with that number is still a server.
const reaperScript = `
trap '' INT TERM HUP
while read -r kind what; do
  case $kind in
  dir) set -- "$@" "$what" ;;
  pid) pids="$pids $what" ;;
  esac
done
for pid in $pids; do
  case $(ps -o comm= -p "$pid") in
  *redis*|*valkey*) kill -9 "$pid" ;;
  esac
done
rm -rf -- "$@" 2>/dev/null || { sleep 1; rm -rf -- "$@"; }
`

// reaper returns the input of the only script of this process.
var reaper = sync.OnceValues(func() (io.Writer, error) {
	cmd := exec.Command("sh", "-c", reaperScript)
	cmd.Dir = os.TempDir()
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return in, cmd.Start() // never waited for, because it ends last
})

// reap gives the reaper a "dir" to remove or a "pid" to kill.
func reap(kind, what string) error {
	in, err := reaper()
	if err == nil {
		_, err = fmt.Fprintln(in, kind, what) // one short write, so calls do not mix
	}
	if err != nil {
		return fmt.Errorf("clean up after redis-server: %w", err)
	}
	return nil
}

// ownDir returns a new directory that is removed with the process at the latest.
func ownDir() (string, error) {
	dir, err := os.MkdirTemp("", "delayq-redis-")
	if err != nil {
		return "", err
	}
	return dir, reap("dir", dir)
}
