package outbox

import (
	"errors"
	"fmt"
	"time"
)

// A RelayState says how a relay is doing.
type RelayState struct {
	Running bool      // Run has been called and has not returned
	Shards  int       // of the outbox
	Held    int       // that this relay holds; the others are held by other relays, or by none
	Success time.Time // when each shard had been looked after without an error; zero: not yet
	Err     error     // why a shard cannot be looked after; nil: all can be
	Deleted int64     // dead rows over the DeadLimit that this relay has deleted
}

// State returns how the relay is doing. It is safe for concurrent use, and asks neither the
// database nor Redis. A relay that holds no shard looks for a free one every fifth of a [Lease].
func (r *Relay) State() RelayState {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := RelayState{Running: r.running, Shards: r.box.shards, Deleted: r.deleted}
	for shard := range r.box.shards {
		n := r.notes[shard]
		if n.held {
			s.Held++
		}
		if shard == 0 || n.success.Before(s.Success) {
			s.Success = n.success
		}
		if s.Err == nil {
			s.Err = n.err
		}
	}
	return s
}

// Live returns an error if the relay should be started anew: Run has returned, or a shard has had
// no turn for three times the [Lease], whether with success or not. It is nil before Run is called.
func (r *Relay) Live() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return errors.New("outbox: Run has returned")
	}
	for shard, n := range r.notes {
		if late := time.Since(n.turn); r.running && late > 3*r.o.lease {
			return fmt.Errorf("outbox: the last turn of shard %d ended %v ago", shard, late.Round(time.Millisecond))
		}
	}
	return nil
}

// Ready returns an error if the relay cannot send rows: it is not running, or the database or Redis
// does not do what it needs. A relay is ready too while others hold the shards.
func (r *Relay) Ready() error {
	s := r.State()
	switch {
	case !s.Running:
		return errors.New("outbox: the relay is not running")
	case s.Err != nil:
		return s.Err
	case s.Success.IsZero():
		return errors.New("outbox: the relay has not looked after each shard yet")
	}
	return nil
}

// A note is what is known about the turns of a shard.
type note struct {
	turn, success time.Time
	held          bool
	err           error
}

// note notes that a turn has ended.
func (r *Relay) note(h *holding, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := &r.notes[h.shard]
	if err == nil {
		err = h.refused
	}
	n.turn, n.held, n.err = time.Now(), h.number > 0, err
	if err == nil {
		n.success = n.turn
	}
}

// starts notes that Run has begun or ended.
func (r *Relay) starts(running bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running, r.ended = running, !running
	if running {
		r.notes = make([]note, r.box.shards)
		for shard := range r.notes {
			r.notes[shard].turn = time.Now()
		}
	}
}
