package delayq

import (
	"crypto/rand"
	"strconv"
	"sync"
)

// A series is a row of calls that follow each other, numbered, so that a script can tell a call that was sent again from a new
// one (see lua/prelude/receipt.lua). One call at a time.
type series struct {
	id  string
	seq uint64

	topic string // of the last receipt
	key   string
}

func newSeries() *series { return &series{id: rand.Text()} }

// next is the number of the series's next call.
func (l *series) next() string {
	l.seq++
	return strconv.FormatUint(l.seq, 10)
}

// receipt is the key of the series's receipt in a topic.
func (l *series) receipt(k *keys) string {
	if l.topic != k.topic || l.key == "" {
		l.topic, l.key = k.topic, k.receipt(l.id)
	}
	return l.key
}

// series holds the series that are not in use.
type seriesPool struct {
	base  string // what the names of its series begin with; empty: each has a name of its own
	floor uint64 // the numbers of its series are greater

	mu      sync.Mutex
	free    []*series
	made    int
	dropped bool // a series was not given back after use
}

func (l *seriesPool) get() *series {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.free); n > 0 {
		last := l.free[n-1]
		l.free = l.free[:n-1]
		return last
	}
	if l.base == "" {
		return newSeries()
	}
	l.made++
	return &series{id: l.base + strconv.Itoa(l.made), seq: l.floor}
}

// last is the greatest number that a call has had in those series that are there, and reports whether
// one was dropped.
func (l *seriesPool) last() (seq uint64, dropped bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seq = l.floor
	for _, one := range l.free {
		seq = max(seq, one.seq)
	}
	return seq, l.dropped
}

// put gives a series back after a call. After a call that Redis did not answer the series is dropped: the call may still arrive.
func (l *seriesPool) put(used *series, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && !certain(err) {
		l.dropped = true
		return
	}
	l.free = append(l.free, used)
}
