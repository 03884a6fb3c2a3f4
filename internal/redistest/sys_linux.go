package redistest

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// diesWithThread means that the kernel kills a server when the thread that started it ends; see
// spawn.
const diesWithThread = true

const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// frozen returns nil if a process is stopped by SIGSTOP. A signal has its effect some time after it
// is sent.
func frozen(pid int) error {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return err
	}
	// pid (name) state ...; the name may contain any bytes.
	if rest := stat[bytes.LastIndexByte(stat, ')')+1:]; !bytes.HasPrefix(rest, []byte(" T")) {
		return fmt.Errorf("process %d is not stopped yet", pid)
	}
	return nil
}
