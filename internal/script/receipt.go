package script

import (
	"crypto/rand"
	"strconv"
	"sync"
)

// A Series is a sequence of numbered calls, so that a script can distinguish a call that was sent
// again from a new one (see lua/prelude/receipt.lua). Only one call is in progress at a time.
type Series struct {
	ID   string
	Seq  uint64
	kept string // after each number: how long the receipt is kept, if not as long as usual

	topic string // of the last receipt
	key   any    // a string, ready to be sent
}

func NewSeries() *Series { return &Series{ID: rand.Text()} }

// Next returns the number of the next call.
func (l *Series) Next() string {
	l.Seq++
	return strconv.FormatUint(l.Seq, 10) + l.kept
}

// Receipt returns the key of the series's receipt in a topic, a string.
func (l *Series) Receipt(k *Keys) any {
	if l.topic != k.Topic || l.key == nil {
		l.topic, l.key = k.Topic, k.Receipt(l.ID)
	}
	return l.key
}

// SeriesPool holds the series that are not in use.
type SeriesPool struct {
	Base  string // prefix of the IDs of its series; empty: each has a random ID
	Floor uint64 // the numbers of its series are greater
	Kept  string // of its series

	mu      sync.Mutex
	Free    []*Series
	made    int
	dropped bool // a series was not given back after use
}

func (l *SeriesPool) Get() *Series {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.Free); n > 0 {
		last := l.Free[n-1]
		l.Free = l.Free[:n-1]
		return last
	}
	if l.Base == "" {
		return NewSeries()
	}
	l.made++
	return &Series{ID: l.Base + strconv.Itoa(l.made), Seq: l.Floor, kept: l.Kept}
}

// Last returns the greatest number of a call in the series of the pool, and reports whether one was
// dropped.
func (l *SeriesPool) Last() (seq uint64, dropped bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seq = l.Floor
	for _, one := range l.Free {
		seq = max(seq, one.Seq)
	}
	return seq, l.dropped
}

// Put returns a series to the pool after a call. If Redis did not answer the call, the series is
// dropped, because the call may still arrive.
func (l *SeriesPool) Put(used *Series, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && !Certain(err) {
		l.dropped = true
		return
	}
	l.Free = append(l.Free, used)
}
