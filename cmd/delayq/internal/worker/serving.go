package worker

import (
	"context"
	"database/sql"
	"fmt"
	"sync"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/database"
	"github.com/delayq/delayq/outbox"
)

// A poolKey says which database a pool has connections to.
type poolKey struct {
	dialect     outbox.Dialect
	address     string
	connections int
}

// A pool has the connections to a database. Topics with the same database share it.
type pool struct {
	db   *sql.DB
	key  poolKey
	of   *pools
	uses int // guarded by pools.mu
}

// pools are the databases that are open.
type pools struct {
	mu   sync.Mutex
	open map[poolKey]*pool
}

// get returns the pool of a database, for one more use.
func (p *pools) get(d *databaseConfig) (*pool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := poolKey{d.dialect, d.address, d.connections}
	if p.open[key] == nil {
		db, err := database.Open(d.dialect, d.address)
		if err != nil {
			return nil, fmt.Errorf("database %s: %w", d.name, err)
		}
		db.SetMaxOpenConns(d.connections)
		db.SetMaxIdleConns(min(d.connections, 10))
		if p.open == nil {
			p.open = make(map[poolKey]*pool)
		}
		p.open[key] = &pool{db: db, key: key, of: p}
	}
	p.open[key].uses++
	return p.open[key], nil
}

// done ends a use. The last one closes the database.
func (p *pool) done() {
	p.of.mu.Lock()
	p.uses--
	last := p.uses == 0
	if last {
		delete(p.of.open, p.key)
	}
	p.of.mu.Unlock()
	if last {
		_ = p.db.Close() // nobody uses it any more
	}
}

// A version is a handler as one load of the file has made it.
type version struct {
	handler delayq.Handler
	kind    kind
	redact  *redactor
	pools   []*pool

	mu   sync.Mutex
	uses int // jobs that run, and 1 while it is current
}

// newVersion makes the handler of a topic.
func newVersion(t *Topic, client *delayq.Client, all *pools, redact *redactor) (*version, error) {
	v := &version{kind: t.kind, redact: redact, uses: 1}
	open := func(d *databaseConfig) (*pool, error) {
		p, err := all.get(d)
		if err == nil {
			v.pools = append(v.pools, p)
		}
		return p, err
	}
	var err error
	if v.handler, err = t.kind.handler(client, open); err != nil {
		v.leave()
		return nil, fmt.Errorf("topic %q: %w", t.Name, err)
	}
	return v, nil
}

func (v *version) enter() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.uses++
}

// leave ends a use. The last one gives back what the handler needs.
func (v *version) leave() {
	v.mu.Lock()
	v.uses--
	last := v.uses == 0
	v.mu.Unlock()
	if last {
		for _, p := range v.pools {
			p.done()
		}
	}
}

// A current is the handler of a topic for the server. It passes each job on to the version that is
// current when the job starts.
type current struct {
	mu      sync.Mutex
	version *version // nil: none
}

// Handle runs a job.
func (c *current) Handle(ctx context.Context, job *delayq.Job) error {
	c.mu.Lock()
	v := c.version
	if v == nil { // its last jobs have ended before
		c.mu.Unlock()
		return delayq.Snooze(0)
	}
	v.enter()
	c.mu.Unlock()
	defer v.leave()
	defer v.redact.output(job)
	return v.redact.error(v.handler.Handle(ctx, job))
}

// set makes a version the current one. Jobs that run keep theirs.
func (c *current) set(v *version) {
	c.mu.Lock()
	old := c.version
	c.version = v
	c.mu.Unlock()
	if old != nil {
		old.leave()
	}
}
