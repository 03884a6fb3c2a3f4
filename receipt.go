package delayq

import (
	"crypto/rand"
	"strconv"
	"sync"
)

// A series is a sequence of numbered calls, so that a script can distinguish a call that was sent
// again from a new one (see lua/prelude/receipt.lua). Only one call is in progress at a time.
type series struct {
	id   string
	seq  uint64
	kept string // after each number: how long the receipt is kept, if not as long as usual

	topic string // of the last receipt
	key   string
}

func newSeries() *series { return &series{id: rand.Text()} }

// next returns the number of the next call.
func (l *series) next() string {
	l.seq++
	return strconv.FormatUint(l.seq, 10) + l.kept
}

// receipt returns the key of the series's receipt in a topic.
func (l *series) receipt(k *keys) string {
	if l.topic != k.topic || l.key == "" {
		l.topic, l.key = k.topic, k.receipt(l.id)
	}
	return l.key
}

// seriesPool holds the series that are not in use.
type seriesPool struct {
	base  string // prefix of the IDs of its series; empty: each has a random ID
	floor uint64 // the numbers of its series are greater
	kept  string // of its series

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
	return &series{id: l.base + strconv.Itoa(l.made), seq: l.floor, kept: l.kept}
}

// last returns the greatest number of a call in the series of the pool, and reports whether one was
// dropped.
func (l *seriesPool) last() (seq uint64, dropped bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seq = l.floor
	for _, one := range l.free {
		seq = max(seq, one.seq)
	}
	return seq, l.dropped
}

// put returns a series to the pool after a call. If Redis did not answer the call, the series is
// dropped, because the call may still arrive.
func (l *seriesPool) put(used *series, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && !certain(err) {
		l.dropped = true
		return
	}
	l.free = append(l.free, used)
}
