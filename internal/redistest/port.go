package redistest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports lie below the range from which the system takes the ports of outgoing connections (on Linux from 32768): nobody
// takes one while its server is down for a restart. The bus of a cluster node listens busOffset higher.
const (
	firstPort = 10_000
	lastPort  = 19_999
	busOffset = 10_000
)

var (
	portsMu sync.Mutex
	ports   = map[int]bool{} // ports this process has given out; never given out again
)

// freePort returns a port on which nobody listens, nor on its bus port. Another process may take it at the next moment.
func freePort() (int, error) {
	portsMu.Lock()
	defer portsMu.Unlock()
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if !ports[port] && free(port) && free(port+busOffset) {
			ports[port] = true
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port between %d and %d", firstPort, lastPort)
}

func free(port int) bool {
	l, err := net.Listen("tcp", local(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// local returns the address of a port of this machine.
func local(port int) string {
	return fmt.Sprintf("127.0.0.1:%d", port)
}
