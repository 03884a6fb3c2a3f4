package serve

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/script"
)

// A Node is one Redis that serves topics: the only one, or a master of a cluster. The loops of its
// topics have goroutines of their own, so that a node that does not answer holds up no topic of
// another one.
type Node struct {
	name    string // under which the server is rung there
	Only    bool   // there is no cluster
	client  redis.UniversalClient
	Scripts script.Caller      // of this node alone
	end     context.CancelFunc // of its ring loop; nil: it has none

	promotes, takes, settles, extends, notes, relays *loop.Pool
}

func (n *Node) pools() []*loop.Pool {
	return []*loop.Pool{n.promotes, n.takes, n.settles, n.extends, n.notes, n.relays}
}

// close ends what belongs to a node that serves no topic.
func (n *Node) close() {
	if n.end != nil {
		n.end()
	}
	for _, p := range n.pools() {
		p.Close()
	}
}

// nodes are the nodes of a server. A node of a cluster that comes back has a new client, and counts
// as another one.
type nodes struct {
	mu     sync.Mutex
	all    map[redis.UniversalClient]*Node // by the client of the node
	made   int
	gone   []*Node // they serve no topic any more
	topics int     // of the server
}

// Most goroutines of each kind of loop of a node that serves some of a server's n topics. Each can
// have one call in flight, so their sum also bounds the connections.
func mostPromotes(n int) int { return min(n, 2+n/100, 6) }
func MostTakes(n int) int    { return min(takers*n, 6+n/50, 16) }
func mostSettles(n int) int  { return min(2*n, 4+n/100, 10) }
func mostExtends(n int) int  { return min(n, 3+n/300, 6) }
func mostNotes(n int) int    { return min(n, 2+n/300, 4) }
func mostRelays(n int) int   { return min(n, 3+n/300, 6) }

// MostCalls is the most goroutines that do not take.
func MostCalls(n int) int {
	return mostPromotes(n) + mostSettles(n) + mostExtends(n) + mostNotes(n) + mostRelays(n)
}

// Connections that a server of n topics keeps although nobody uses them, so that the next job need
// not wait for one: half of those that it can use at a time. Few handlers note anything or hand
// jobs over.
func restingCalls(n int) int { return (MostCalls(n) - mostNotes(n) - mostRelays(n) + 1) / 2 }
func restingTakes(n int) int { return (MostTakes(n) + 1) / 2 }

// trimAfter is how long a connection is kept that nobody uses, beyond these.
const trimAfter = 5 * time.Second

// trim closes connections that are no longer needed.
func (s *Server) trim() {
	n := s.Topics.len()
	for i, keep := range []int{restingCalls(n), restingTakes(n), 0} {
		s.dials[i].Trim(keep, trimAfter)
	}
}

// OtherCalls is the most calls of a server that belong to no loop of a topic: a heartbeat, two
// checks, those of a watch or a survey of 1,000 topics, and those that read what runs have noted.
const OtherCalls = 8 + mostRecalls

// takers is the number of takers of a topic.
const takers = 2

// nodeClient returns the client of the node that serves a topic, and nil if a cluster's client does
// not know it. That client can have to ask Redis, so nobody may hold a mutex that others need.
func (s *Server) nodeClient(ctx context.Context, k *script.Keys) redis.UniversalClient {
	if cluster, ok := s.Calls.(*redis.ClusterClient); ok {
		if master, err := cluster.MasterForKey(ctx, k.Ready); err == nil {
			return master
		}
		return nil
	}
	return s.Calls
}

// ClientFor is nodeClient for a topic that is about to be handled. It returns nil if the server
// does not run.
func (s *Server) ClientFor(topic string) redis.UniversalClient {
	s.mu.Lock()
	as := s.phase.lifetime
	s.mu.Unlock()
	if as == nil {
		return nil
	}
	call, cancel := context.WithTimeout(as.fetch, CallTimeout)
	defer cancel()
	return s.nodeClient(call, script.NewKeys(s.Config.Prefix, topic))
}

// nodeClients returns the clients of the nodes that serve the topics, as far as they are known.
func (s *Server) nodeClients(ctx context.Context) map[*Topic]redis.UniversalClient {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	clients := make(map[*Topic]redis.UniversalClient)
	for _, t := range s.Topics.all() {
		if client := s.nodeClient(call, t.Keys); client != nil {
			clients[t] = client
		}
	}
	return clients
}

// nodeOf returns the node of a client. Without one, the client of the cluster stands in.
func (s *Server) nodeOf(client redis.UniversalClient, as *lifetime) *Node {
	_, cluster := s.Calls.(*redis.ClusterClient)
	if client == nil {
		client = s.Calls
	}
	only := !cluster
	ns, ls := &s.nodes, &s.loops
	ns.mu.Lock()
	defer ns.mu.Unlock()
	n := ns.all[client]
	if n != nil {
		return n
	}
	many := ns.topics
	n = &Node{
		name: s.Config.ID, Only: only, client: client, Scripts: script.Caller{RDB: script.NewFelt(client, &s.pulse), Hooks: s.Config.Listener},
		promotes: ls.NewPool(mostPromotes(many)), takes: ls.NewPool(MostTakes(many)),
		settles: ls.NewPool(mostSettles(many)), extends: ls.NewPool(mostExtends(many)), notes: ls.NewPool(mostNotes(many)),
		relays: ls.NewPool(mostRelays(many)),
	}
	if !only {
		n.name += "." + strconv.Itoa(ns.made)
		var ctx context.Context
		ctx, n.end = context.WithCancel(as.work)
		s.loops.Keep(ctx, as.working, "ring", func(ctx context.Context) { s.ringLoop(ctx, n) })
	}
	ns.made++
	ns.all[client] = n
	return n
}

// moveTopics gives the topics of a cluster to the nodes that serve them now.
func (s *Server) moveTopics(ctx context.Context) {
	if _, cluster := s.Calls.(*redis.ClusterClient); !cluster {
		return
	}
	clients := s.nodeClients(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase.lifetime == nil {
		return
	}
	for _, t := range s.Topics.all() {
		client := clients[t]
		if client == nil {
			continue // it is not known now
		}
		if n := s.nodeOf(client, s.phase.lifetime); n != t.node.Load() {
			t.move(n)
		}
	}
	s.nodes.drop(s.Topics.all())
}

// drop ends the nodes that serve none of a server's topics.
func (ns *nodes) drop(topics []*Topic) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	serves := make(map[*Node]bool)
	for _, t := range topics {
		serves[t.node.Load()] = true
	}
	for client, n := range ns.all {
		if !serves[n] {
			n.close()
			delete(ns.all, client)
			ns.gone = append(ns.gone, n)
		}
	}
}

// move makes another node serve the topic.
func (t *Topic) move(n *Node) {
	t.node.Store(n)
	t.taking.ring.listed.Store(false)
	l := &t.Loops
	l.promote.Move(n.promotes)
	l.take.Move(n.takes)
	l.takeMore.Move(n.takes)
	l.settle.Move(n.settles)
	l.settleMore.Move(n.settles)
	l.extend.Move(n.extends)
	l.note.Move(n.notes)
	l.relay.Move(n.relays)
}

// grow lets each node have as many goroutines as n topics need.
func (ns *nodes) grow(n int) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	ns.topics = max(ns.topics, n)
	for _, one := range ns.all {
		one.promotes.Resize(mostPromotes(n))
		one.takes.Resize(MostTakes(n))
		one.settles.Resize(mostSettles(n))
		one.extends.Resize(mostExtends(n))
		one.notes.Resize(mostNotes(n))
		one.relays.Resize(mostRelays(n))
	}
}

// close ends the goroutines of all nodes, and waits for them. No loop may be left.
func (ns *nodes) close() {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for _, n := range ns.all {
		n.close()
		ns.gone = append(ns.gone, n)
	}
	for _, n := range ns.gone {
		for _, p := range n.pools() {
			p.Running.Wait()
		}
	}
}
