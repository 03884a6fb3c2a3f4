package record

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// A LeaseEnd is an instant of Redis's clock, to the microsecond. It names a lease, because no two
// leases of a job end at the same time. In Redis it is the score of the job in leases, in Unix ms
// with a fraction. The zero LeaseEnd is none.
type LeaseEnd struct {
	text   string // as Redis writes it; releases of Redis differ in the number of digits
	micros int64
}

// ParseLeaseEnd reads a score. A malformed score is an end at 0.
func ParseLeaseEnd(score string) LeaseEnd {
	ms, _ := strconv.ParseFloat(score, 64) // Redis wrote it
	return LeaseEnd{score, int64(math.Round(ms * 1000))}
}

// LeaseEndAt returns the end at a whole Unix ms.
func LeaseEndAt(ms int64) LeaseEnd { return LeaseEnd{strconv.FormatInt(ms, 10), ms * 1000} }

// String returns the end as a script reads it.
func (e LeaseEnd) String() string { return e.text }

// Micros returns the end in Unix µs.
func (e LeaseEnd) Micros() int64 { return e.micros }

// A Fence is what a script may find as the end of a lease: the end that Redis has confirmed, and
// those that were proposed since and that Redis has not answered. Every call that settles the job
// names all of them. The zero Fence names no lease.
type Fence struct {
	confirmed LeaseEnd
	proposed  []LeaseEnd // the oldest first
}

// FenceOf returns the fence of a lease with a confirmed end.
func FenceOf(end LeaseEnd) Fence { return Fence{confirmed: end} }

// ParseFence reads what String returns, and what scripts pass on in messages.
func ParseFence(text string) (f Fence) {
	for i, end := range strings.Fields(text) {
		if i == 0 {
			f.confirmed = ParseLeaseEnd(end)
		} else {
			f.Propose(ParseLeaseEnd(end))
		}
	}
	return f
}

// Confirmed returns the latest end that Redis is known to have set.
func (f *Fence) Confirmed() LeaseEnd { return f.confirmed }

// Propose adds an end that is on its way to Redis. The same end can be proposed repeatedly.
func (f *Fence) Propose(end LeaseEnd) {
	if !slices.Contains(f.proposed, end) {
		f.proposed = append(f.proposed, end)
	}
}

// Confirm replaces all ends by one that Redis has set.
func (f *Fence) Confirm(end LeaseEnd) { *f = Fence{confirmed: end} }

// Has reports whether the lease may end then.
func (f *Fence) Has(end LeaseEnd) bool {
	same := func(e LeaseEnd) bool { return e.micros == end.micros }
	return same(f.confirmed) || slices.ContainsFunc(f.proposed, same)
}

// String returns the fence as the settling scripts read it: the ends, separated by spaces.
func (f *Fence) String() string {
	if len(f.proposed) == 0 {
		return f.confirmed.text
	}
	var b strings.Builder
	b.WriteString(f.confirmed.text)
	for _, end := range f.proposed {
		b.WriteByte(' ')
		b.WriteString(end.text)
	}
	return b.String()
}
