package workers

import (
	"container/heap"
	"sync"
)

// A Pool shares a number of workers among topics of a server. A topic claims workers before a
// take, and gives back those that get no job. When a handler ends, its worker goes to the topic
// that needs one and has the fewest for its weight, and among equals to the one with the fewest
// starts for its weight (stride scheduling: Waldspurger and Weihl, 1995). So busy topics have
// workers in proportion to their weights, and with a single worker their starts are in that
// proportion. Idle workers go to whoever asks. They are not taken away from a running handler.
//
// A topic that has no worker gets the next one, so each topic that has jobs has one at least. A
// lower class does so only when it is due by the starts that its weight gives it.
//
// The pool makes no calls and locks no other mutex. Its callers hold the mu of their own topic, and
// tell the other topics after they have released it.
type Pool struct {
	Name string
	Size int

	mu     sync.Mutex
	idle   int
	clock  float64 // pass of the last member that was given a worker
	weight int     // sum of the weights of the members that have workers or wait for them
	queue  queue
}

func NewPool(name string, size int) *Pool {
	return &Pool{Name: name, Size: size, idle: size}
}

// A Member is a topic of a pool. Pool.mu guards its fields but the first four.
type Member struct {
	Pool    *Pool
	Receive func() // called when the pool has given workers to the topic
	Weight  int
	Lower   bool // a lower class

	has   int     // workers that are this topic's
	wants int     // how many more it waits for
	pass  float64 // number of workers it was given, by weight
	index int     // in the queue, if wants > 0
}

func (m *Member) active() bool { return m.has > 0 || m.wants > 0 }

// before reports whether m is the one to get the next worker, of two that wait.
func (m *Member) before(other *Member) bool {
	if a, b := m.has*other.Weight, other.has*m.Weight; a != b {
		return a < b
	}
	if m.pass != other.pass {
		return m.pass < other.pass
	}
	return m.Weight > other.Weight
}

// Adjust says that the topic needs that many workers in all, of which finished have just ended
// their handlers. The topic gives back what it does not need, and waits for what it does not get.
// It returns the workers that the topic has and its share of the pool, above 0 and at most 1, and
// appends to given the other members that got workers.
func (m *Member) Adjust(needs, finished int, given []*Member) (has int, share float64, _ []*Member) {
	p := m.Pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.active() {
		p.weight -= m.Weight
	}
	m.has -= finished
	p.idle += finished
	if unused := m.has - needs; unused > 0 {
		m.has, p.idle = needs, p.idle+unused
		m.pass -= float64(unused) / float64(m.Weight) // nothing has started
	}
	wanted := m.wants
	m.wants = needs - m.has
	switch {
	case wanted == 0 && m.wants > 0:
		if m.has == 0 && finished == 0 {
			m.pass = max(m.pass, p.clock) // idle time is no credit
		}
		heap.Push(&p.queue, m)
	case wanted > 0 && m.wants == 0:
		heap.Remove(&p.queue, m.index)
	case wanted > 0:
		heap.Fix(&p.queue, m.index)
	}
	if m.active() {
		p.weight += m.Weight
	}
	for p.idle > 0 && len(p.queue) > 0 {
		if next := p.giveLocked(); next != m && (len(given) == 0 || given[len(given)-1] != next) {
			given = append(given, next)
		}
	}
	return m.has, float64(m.Weight) / float64(max(p.weight, m.Weight)), given
}

// spare reports whether a worker of the pool is idle.
func (p *Pool) spare() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.idle > 0
}

// early reports whether m is a lower class without a worker that has had its starts already.
func (m *Member) early() bool { return m.Lower && m.has == 0 && m.pass > m.Pool.clock }

// nextLocked returns the member of the queue that gets the next worker: the first one that is not
// early, or else the first. It looks at no more members than there are lower classes, and one.
func (p *Pool) nextLocked() *Member {
	first := p.queue[0]
	if !first.early() {
		return first
	}
	var passed []*Member
	for len(p.queue) > 0 && p.queue[0].early() {
		passed = append(passed, heap.Pop(&p.queue).(*Member))
	}
	if len(p.queue) > 0 {
		first = p.queue[0]
	}
	for _, m := range passed {
		heap.Push(&p.queue, m)
	}
	return first
}

// giveLocked gives an idle worker to a member of the queue.
func (p *Pool) giveLocked() *Member {
	m := p.nextLocked()
	p.clock = max(p.clock, m.pass)
	m.pass += 1 / float64(m.Weight)
	p.idle--
	m.has++
	if m.wants--; m.wants > 0 {
		heap.Fix(&p.queue, m.index)
	} else {
		heap.Remove(&p.queue, m.index)
	}
	return m
}

// queue holds the members that wait for workers, as a heap.
type queue []*Member

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].before(q[j]) }

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *queue) Push(x any) {
	m := x.(*Member)
	m.index = len(*q)
	*q = append(*q, m)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	m := (*q)[last]
	(*q)[last], *q = nil, (*q)[:last]
	return m
}
