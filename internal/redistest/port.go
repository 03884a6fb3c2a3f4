package redistest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports are below the range from which the system assigns the ports of outgoing connections (on
// Linux from 32768). So none of these takes a port while its server is down for a restart. The bus
// of a cluster node listens busOffset higher.
const (
	firstPort = 10_000
	lastPort  = 19_999
	busOffset = 10_000
)

var (
	portsMu sync.Mutex
	ports   = map[int]bool{} // ports that this process has used; never used again
)

// freePort returns a port on which nobody listens, and nobody on its bus port. Another process can
// take it a moment later.
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
