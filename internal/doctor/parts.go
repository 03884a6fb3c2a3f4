package doctor

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

// The kinds of findings about the partitions of a topic.
const (
	kindNotServed = "partition_not_served"
	kindNotClosed = "partition_not_closed"
	kindMapLost   = "map_lost"
	kindStrayHome = "stray_home_job"
)

// Add adds the report of a place of the topic.
func (r *Report) Add(place string, o *Report) {
	r.Jobs += o.Jobs
	r.Mended += o.Mended
	for _, f := range o.Findings {
		if _, parted := part.IsName(place); parted {
			f.Place = place
		}
		if len(r.Findings) < mostFindings {
			r.Findings = append(r.Findings, f)
		}
	}
	for kind, n := range o.Found {
		r.Found[kind] += n
	}
}

// Parts are the partitions of a topic, to be checked as a whole.
type Parts struct {
	Topic string
	Map   part.Map
	Keys  []*script.Keys // of all places
	Send  func(ctx context.Context, cmds []redis.Cmder)

	// Close repairs: see [commit.ClosePlace]. nil: nothing is repaired.
	Close func(ctx context.Context, k *script.Keys, keysStay bool) error
}

// Check returns what is wrong with the partitions as a whole. served reports whether a live server
// serves the topic, and strays finds the IDs of jobs that have no business at home.
func (p *Parts) Check(ctx context.Context, served bool, strays func(found func(id string)) error) (*Report, error) {
	d := &Doctor{Report: Report{Found: make(map[string]int)}}
	if !served {
		d.note(Finding{Key: "servers", Kind: kindNotServed})
	}
	closed, err := p.closed(ctx)
	if err != nil {
		return &d.Report, err
	}
	open := p.Map.Open().Number
	lost := false
	for i, k := range p.Keys {
		_, generation, _, parted := part.Split(k.Topic)
		switch {
		case generation == open:
			lost = lost || closed[i]
		case !closed[i]:
			found := Finding{Key: k.Name(k.Tombs), Kind: kindNotClosed}
			if parted {
				found.Place = k.Topic
			}
			if p.Close != nil {
				if err := p.Close(ctx, k, p.Map.KeysStay(generation)); err != nil {
					return &d.Report, err
				}
				found.Mended = true
			}
			d.note(found)
		}
	}
	if lost {
		d.note(Finding{Key: p.Keys[0].Name(p.Keys[0].Parts), Kind: kindMapLost})
	}
	return &d.Report, strays(func(id string) {
		d.note(Finding{Key: p.Keys[0].Name(p.Keys[0].Pool), ID: id, Kind: kindStrayHome})
	})
}

// closed reports of each place whether it is closed.
func (p *Parts) closed(ctx context.Context) ([]bool, error) {
	cmds := make([]redis.Cmder, len(p.Keys))
	for i, k := range p.Keys {
		cmds[i] = redis.NewFloatCmd(ctx, "zscore", k.Tombs, "")
	}
	p.Send(ctx, cmds)
	closed := make([]bool, len(cmds))
	for i, cmd := range cmds {
		err := cmd.Err()
		if closed[i] = err == nil; err != nil && !errors.Is(err, redis.Nil) {
			return nil, err
		}
	}
	return closed, nil
}
