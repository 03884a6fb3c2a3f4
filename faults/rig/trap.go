package rig

import "slices"

// DropReply makes the next request that matches be carried out and its reply be lost: the
// connection is reset instead. A reply of NOSCRIPT passes, for then nothing was carried out, and
// the trap stays.
func (p *Proxy) DropReply(m Match) *Trap { return p.trap(&Trap{match: m, left: 1}) }

// DropReplies is DropReply for every request that matches, until the trap is removed.
func (p *Proxy) DropReplies(m Match) *Trap { return p.trap(&Trap{match: m, left: -1}) }

// Answer gives requests that match a reply of the test's own, like "-READONLY no writes here"; they
// do not reach Redis. n is how many, below zero all until the trap is removed.
func (p *Proxy) Answer(m Match, reply string, n int) *Trap {
	return p.trap(&Trap{match: m, left: n, reply: reply + "\r\n"})
}

// HaltBefore freezes the proxy when a request that matches comes, which does not reach Redis. With
// HaltAfter the request still does, and its reply does not reach the client. When the trap is hit,
// the process can be killed at that line. After that, Reset makes the proxy forget what it holds.
func (p *Proxy) HaltBefore(m Match) *Trap { return p.trap(&Trap{match: m, left: 1, before: true}) }

// HaltAfter is described at HaltBefore.
func (p *Proxy) HaltAfter(m Match) *Trap { return p.trap(&Trap{match: m, left: 1, after: true}) }

func (p *Proxy) trap(t *Trap) *Trap {
	t.proxy, t.hit = p, make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = append(p.traps, t)
	return t
}

// A Trap waits for requests.
type Trap struct {
	proxy         *Proxy
	match         Match
	reply         string // of Answer; empty: the request is carried out and its reply lost
	before, after bool   // the proxy is frozen: before the request passes, or instead of its reply

	// What follows is guarded by the proxy's mu.
	left    int // how many more requests it takes; below 0: any number
	count   int
	removed bool
	hit     chan struct{} // closed with the first request
}

// Hit is closed when the trap has had its first request and, if its reply was to be lost, that has
// happened.
func (t *Trap) Hit() <-chan struct{} { return t.hit }

// Count is how many requests have been trapped.
func (t *Trap) Count() int {
	t.proxy.mu.Lock()
	defer t.proxy.mu.Unlock()
	return t.count
}

// Remove ends the trap.
func (t *Trap) Remove() {
	t.proxy.mu.Lock()
	defer t.proxy.mu.Unlock()
	t.left, t.removed = 0, true
}

// struck notes that the trap has had a request. The proxy's mu is held.
func (t *Trap) struckLocked() {
	if t.count++; t.count == 1 {
		close(t.hit)
	}
}

// caught finds the trap for a request.
func (p *Proxy) caught(words [][]byte) *Trap {
	p.mu.Lock()
	defer p.mu.Unlock()
	live := p.traps[:0]
	var found *Trap
	for _, t := range p.traps {
		if t.left == 0 {
			continue
		}
		live = append(live, t)
		if found == nil && len(words) > 0 && t.match(words) {
			found = t
			if t.left > 0 {
				t.left--
			}
		}
	}
	p.traps = live
	return found
}

// missed puts back what caught took from a trap.
func (t *Trap) missed() {
	t.proxy.mu.Lock()
	defer t.proxy.mu.Unlock()
	if t.removed || t.left < 0 {
		return
	}
	t.left++
	if !slices.Contains(t.proxy.traps, t) {
		t.proxy.traps = append(t.proxy.traps, t)
	}
}
