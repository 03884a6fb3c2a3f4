package sqltest

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
)

// SmallDisk mounts a file system in memory that has room for some bytes, for a server of an
// account. It needs the right to mount. Without it the error wraps ErrMissing.
func SmallDisk(account string, bytes int) (dir string, stop func(), err error) {
	s, err := newService(account)
	if err != nil {
		return "", nil, err
	}
	text, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+strconv.Itoa(bytes), "tmpfs", s.dir).CombinedOutput()
	if err != nil {
		_ = os.RemoveAll(s.dir)
		return "", nil, fmt.Errorf("a small disk cannot be mounted: %w: %w: %s", ErrMissing, err, text)
	}
	stop = func() {
		// A server that has just ended can still be on it.
		_ = exec.Command("umount", "-l", s.dir).Run()
		_ = os.RemoveAll(s.dir)
	}
	if s.as != nil {
		if err := os.Chown(s.dir, int(s.as.Uid), int(s.as.Gid)); err != nil {
			stop()
			return "", nil, err
		}
	}
	return s.dir, stop, nil
}
