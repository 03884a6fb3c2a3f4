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
// The pool makes no calls, and locks no mutex but that of the pool that it is part of. Its callers
// hold the mu of their own topic, and tell the other topics after they have released it.
type Pool struct {
	Name string
	Size int // of a pool on demand: 0

	of   *Member // of the pool that it is part of; nil: the workers are its own
	once bool    // it is on demand

	mu     sync.Mutex
	idle   int     // below 0: that many workers are to be given back
	has    int     // workers of the members
	wants  int     // how many more they wait for
	share  float64 // of the pool that it is part of
	clock  float64 // pass of the last member that was given a worker
	weight int     // sum of the weights of the members that have workers or wait for them
	queue  queue
}

func NewPool(name string, size int) *Pool {
	return &Pool{Name: name, Size: size, idle: size, share: 1}
}

// NewPoolOnDemand returns a pool with a worker for each of so many runs. Demand asks for more. Each
// is gone when its handler has ended.
func NewPoolOnDemand(runs int) *Pool {
	p := NewPool("", 0)
	p.once, p.idle = true, runs
	return p
}

// Part returns a pool of the workers that a member has. The topic and its partitions share them.
// From now on only that pool asks for workers of the member.
func (m *Member) Part() *Pool {
	p := NewPool(m.Pool.Name, m.Pool.Size)
	p.of, p.idle = m, 0
	return p
}

// Join makes a topic a member of a pool, with workers that are busy already.
func (m *Member) Join(busy int) {
	p := m.Pool
	p.mu.Lock()
	defer p.mu.Unlock()
	m.has = busy
	p.has, p.idle = p.has+busy, p.idle-busy
	if m.active() {
		p.weight += m.Weight
	}
}

// Demand asks for so many more workers of a pool on demand, or with a negative number withdraws
// what was asked for. It appends to given the members that got workers.
func (p *Pool) Demand(runs int, given []*Member) []*Member {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle += runs
	return p.giveAllLocked(nil, given)
}

// Owes reports whether more workers were withdrawn than were idle. Then the members must give back
// those that run no handler.
func (p *Pool) Owes() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.once && p.idle < 0
}

// Total returns the number of workers.
func (p *Pool) Total() int {
	if !p.once {
		return p.Size
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.has + p.idle
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
	p.has, p.wants = p.has-m.has, p.wants-m.wants
	m.has -= finished
	if !p.once {
		p.idle += finished
	}
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
	p.has, p.wants = p.has+m.has, p.wants+m.wants
	if p.of != nil {
		all := 0
		all, p.share, given = p.of.Adjust(p.has+p.wants, finished, given)
		p.idle = all - p.has
	}
	given = p.giveAllLocked(m, given)
	return m.has, p.share * float64(m.Weight) / float64(max(p.weight, m.Weight)), given
}

// giveAllLocked gives the idle workers to those that wait. It appends them to given, without m.
func (p *Pool) giveAllLocked(m *Member, given []*Member) []*Member {
	for p.idle > 0 && len(p.queue) > 0 {
		if next := p.giveLocked(); next != m && (len(given) == 0 || given[len(given)-1] != next) {
			given = append(given, next)
		}
	}
	return given
}

// spare reports whether a worker of the pool is idle.
func (p *Pool) spare() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.idle > 0 || p.of != nil && p.of.Pool.spare()
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
	p.idle, p.has, p.wants = p.idle-1, p.has+1, p.wants-1
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
