package commit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/script"
)

const (
	// parcelsHeld and parcelsBytes bound the jobs that wait for more jobs of their topic, with
	// which they share a call.
	parcelsHeld  = 10 * ChunkJobs
	parcelsBytes = 4 * chunkBytes

	// parcelsSent is the most parcels on the conveyor: one in progress and the next one. Earlier
	// ones are done.
	parcelsSent = 2
)

// A Batch is one call about many jobs.
type Batch struct {
	kind    *Kind
	jobs    int
	report  func(i int, o *Op) error // reads an outcome into the results, and returns its error
	waiting map[address]*parcel
	maps    *map[string]*knownMap // by which they were put there
	queued  int                   // jobs in them
	bytes   int                   // of their records
	out     *conveyor
	sent    []*parcel // whose outcome is not in the results yet
	failed  int
	first   []error // some of them
}

// An address says where jobs are sent: in walks through the places of a topic that probably end in
// the same one. The topic can be a place itself.
type address struct{ topic, place string }

// A parcel is jobs of one topic that are sent together.
type parcel struct {
	to    address
	list  []*Op
	index []int // of the results
	bytes int
}

// NewBatch returns a batch of calls of one kind. It must be closed.
func (c *Groups) NewBatch(ctx context.Context, k *Kind, jobs int, report func(int, *Op) error) *Batch {
	return &Batch{kind: k, jobs: jobs, report: report, waiting: make(map[address]*parcel), out: c.newConveyor(ctx, jobs)}
}

// Detach makes Put and Send return before Redis has answered, even if the batch has few jobs. It
// must be called before the first Put.
func (b *Batch) Detach() { b.out.detach() }

// Close waits until nothing of the batch is on its way.
func (b *Batch) Close() { b.out.close() }

// Put adds an operation, and sends parcels that are complete.
func (b *Batch) Put(i int, o *Op) {
	if now := b.out.all.maps.all.Load(); now != b.maps { // what comes later must not be sent earlier
		b.Send()
		b.maps = now
	}
	to := address{o.Topic, b.out.all.placeOf(o)}
	p := b.waiting[to]
	if p == nil {
		p = &parcel{to: to}
		b.waiting[to] = p
	}
	size := o.size()
	p.list, p.index = append(p.list, o), append(p.index, i)
	p.bytes, b.queued, b.bytes = p.bytes+size, b.queued+1, b.bytes+size
	switch {
	case len(p.list) == ChunkJobs, p.bytes >= chunkBytes:
		b.send(p)
	case b.queued >= parcelsHeld, b.bytes >= parcelsBytes:
		b.Send()
	}
}

// Send sends all waiting parcels, in the order of their first jobs.
func (b *Batch) Send() {
	list := slices.SortedFunc(maps.Values(b.waiting), func(p, q *parcel) int { return cmp.Compare(p.index[0], q.index[0]) })
	for _, p := range list {
		b.send(p)
	}
}

func (b *Batch) send(p *parcel) {
	delete(b.waiting, p.to)
	b.queued, b.bytes = b.queued-len(p.list), b.bytes-p.bytes
	b.sent = append(b.sent, p)
	b.out.send(p.list)
	b.collect(parcelsSent)
}

// collect reads the outcomes of all sent parcels except the last n, and drops their records.
func (b *Batch) collect(n int) {
	for len(b.sent) > n {
		p := b.sent[0]
		b.sent = slices.Delete(b.sent, 0, 1)
		for i, o := range p.list {
			b.Fail(b.report(p.index[i], o))
		}
	}
}

// Refuse reports an operation that is not sent, because its caller has found a fault in it.
func (b *Batch) Refuse(i int, o *Op, err error) {
	o.Settle(err)
	b.Fail(b.report(i, o))
}

// Fail counts a failed job, and keeps the first errors.
func (b *Batch) Fail(err error) {
	if err == nil {
		return
	}
	if b.failed++; b.failed <= 10 {
		b.first = append(b.first, err)
	}
}

// Finish sends what waits and returns the error of the batch.
func (b *Batch) Finish() error {
	b.Send()
	b.out.close()
	b.collect(0)
	if b.failed == 0 {
		return nil
	}
	return fmt.Errorf("%s batch: %d of %d jobs failed: %w", b.kind.Name, b.failed, b.jobs, errors.Join(b.first...))
}

// A conveyor sends the jobs of a batch while the next ones are prepared. It has its own goroutine,
// unless there are few jobs.
type conveyor struct {
	all    *Groups
	ctx    context.Context // of the batch
	lists  chan []*Op      // nil: there is no goroutine
	done   chan struct{}   // closed when the goroutine has exited
	close  func()          // waits until all jobs are sent
	silent error           // why no more jobs are sent
}

func (c *Groups) newConveyor(ctx context.Context, jobs int) *conveyor {
	o := &conveyor{all: c, ctx: ctx, close: func() {}}
	if jobs > ChunkJobs {
		o.detach()
	}
	return o
}

// detach gives the conveyor its goroutine.
func (o *conveyor) detach() {
	if o.lists != nil {
		return
	}
	o.lists, o.done = make(chan []*Op, 1), make(chan struct{})
	o.close = sync.OnceFunc(func() {
		close(o.lists)
		<-o.done
	})
	o.start()
}

// start starts the goroutine of a conveyor. If a hook of the caller's go-redis client ends that
// goroutine, the jobs in progress get an error, and a new goroutine continues with the next ones.
func (o *conveyor) start() {
	var list []*Op
	contain.Launch(nil, func() {
		for list = range o.lists {
			o.forward(list)
		}
		close(o.done)
	}, func(c *contain.Crash) {
		cut(list, c)
		o.start()
	})
}

// send stores jobs of one topic. Their outcomes are set after close.
func (o *conveyor) send(list []*Op) {
	if o.lists == nil {
		o.forward(list)
		return
	}
	o.lists <- list
}

// forward stores jobs of one topic, unless Redis failed to answer an earlier call.
func (o *conveyor) forward(list []*Op) {
	o.silent = o.all.doAll(o.ctx, list, o.silent)
}

// doAll carries out operations of a batch, chunk by chunk, on series of the client. After a chunk
// that Redis does not answer it sends no more, because each would wait as long. silent is the error
// of such a chunk, if there was one earlier in the batch. doAll returns its new value.
func (g *Group) doAll(ctx context.Context, list []*Op, silent error) error {
	for len(list) > 0 {
		cause := context.Cause(ctx)
		if cause == nil && silent != nil {
			cause = silent
		}
		if cause != nil {
			for _, o := range list {
				o.Settle(cause)
			}
			break
		}
		g.mu.Lock()
		n := chunkLen(list, g.gets)
		g.mu.Unlock()
		sent := list[:n]
		failed, unconfirmed := g.send(ctx, g.all.Series, sent, false)
		if err := cmp.Or(failed, unconfirmed); err != nil && script.Away(err) {
			silent = fmt.Errorf("not sent, because Redis did not answer an earlier chunk: %w", err)
		}
		list = list[n:]
		if open := slices.DeleteFunc(slices.Clone(sent), func(o *Op) bool { return o.settled }); len(open) > 0 {
			list = append(open, list...)
		}
	}
	return silent
}
