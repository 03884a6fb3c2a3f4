package serve

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// The limits of a topic with partitions are divided among its places. The field flow of meta of
// each has its share, and the field shared the limits of all together. What is in shared of the
// home counts. Clients divide limits when they set them. Servers do so if the number of places
// changes, and if DefaultLimits apply.
//
// An operator can set other limits while a server divides those that it has read. So the script
// that gives a place its share does nothing if its limits are others than the server has read
// there. The limits script tells all servers, and one of them divides the new ones.

// limitsOf are the limits of a place: the fields flow and shared of meta.
type limitsOf struct{ flow, shared string }

// whole returns the limits of all places together.
func (l limitsOf) whole() string { return cmp.Or(l.shared, l.flow) }

// limitsOfFields returns what the fields flow and shared have.
func limitsOfFields(fields []any) (l limitsOf) {
	l.flow, _ = fields[0].(string)
	l.shared, _ = fields[1].(string)
	return l
}

// limitsHere returns the limits of a topic or a partition, as they are in Redis.
func (t *Topic) limitsHere(ctx context.Context) (l limitsOf, err error) {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	fields, err := t.Server.Calls.HMGet(call, t.Keys.Meta, "flow", "shared").Result()
	if err != nil {
		return l, err
	}
	return limitsOfFields(fields), nil
}

// limitsNow returns the limits of a topic and the share of the home, which is the same if the home
// is the only place. Both are empty if there are none.
func (t *Topic) limitsNow(ctx context.Context) (whole, flow string, err error) {
	l, err := t.limitsHere(ctx)
	return l.whole(), l.flow, err
}

// shareOf returns the share of limits of a place. If they are too small for that many places, each
// place gets the least that there is, and together they exceed the limits. That is the error.
func shareOf(whole string, p commit.Place) (share string, exceeded error) {
	for n := p.Of; ; n-- {
		share, err := record.ShareOfLimits(whole, p.Index%max(n, 1), n)
		if err == nil {
			return share, exceeded
		}
		if exceeded == nil {
			exceeded = found{err}
		}
	}
}

// divide gives each place of a topic its share of the limits. home is what the home has.
func (t *Topic) divide(ctx context.Context, m part.Map, home limitsOf) error {
	whole := home.whole()
	if whole == "" {
		return nil
	}
	places := commit.Places(t.Keys.Prefix(), t.Keys.Topic, m)
	others := make([]*script.Keys, 0, len(places))
	for _, p := range places[1:] {
		others = append(others, p.Keys)
	}
	has := make([]*redis.SliceCmd, len(others))
	err := t.Server.onMasters(ctx, others, func(ctx context.Context, i int, pipe redis.Pipeliner) {
		has[i] = pipe.HMGet(ctx, others[i].Meta, "flow", "shared")
	})
	var exceeded error
	var wrong []commit.Place
	var had []limitsOf
	for i, p := range places {
		now := home
		if i > 0 {
			if has[i-1] == nil || has[i-1].Err() != nil {
				err = errors.Join(err, errOf(has[i-1]))
				continue
			}
			now = limitsOfFields(has[i-1].Val())
		}
		share, why := shareOf(whole, p)
		exceeded = cmp.Or(exceeded, why)
		if now.flow != share || p.Of > 1 && now.shared != whole {
			wrong, had = append(wrong, p), append(had, now)
		}
	}
	if err != nil || len(wrong) == 0 {
		return cmp.Or(err, exceeded)
	}
	errs := make([]error, len(wrong))
	abreast(ctx, len(wrong), mostTended, func(ctx context.Context, i int) {
		errs[i] = t.Server.giveShare(ctx, wrong[i], had[i], whole)
	}, errs)
	return cmp.Or(cmp.Or(errs...), exceeded)
}

// takeShare gives a partition its share of the limits of its home, if it has no limits.
func (t *Topic) takeShare(ctx context.Context) error {
	whole, _, err := t.config.home.limitsNow(ctx)
	if err != nil || !limits(whole) {
		return err
	}
	had, err := t.limitsHere(ctx)
	if err != nil || had.flow != "" {
		return err
	}
	for _, p := range commit.Places(t.Keys.Prefix(), t.called(), t.config.home.Loops.parts.have()) {
		if p.Keys.Topic == t.Keys.Topic {
			return t.Server.giveShare(ctx, p, had, whole)
		}
	}
	return nil
}

// giveShare gives a place its share of the limits of the topic, if it has those yet that were read.
func (s *Server) giveShare(ctx context.Context, p commit.Place, had limitsOf, whole string) error {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	k, shared := p.Keys, whole
	share, _ := shareOf(whole, p)
	if p.Of <= 1 {
		shared = "" // what was there was the same
	}
	_, err := s.Scripts.Exec(call, script.PartShare, k, "", 0, had.flow, had.shared, share, shared, script.ControlChannel(k.Prefix()), k.Topic)
	return err
}

// errOf returns the error of a command, if it was sent.
func errOf(c *redis.SliceCmd) error {
	if c == nil {
		return nil
	}
	return c.Err()
}

// limits reports whether a text like that in the field flow of meta has a limit.
func limits(flow string) bool { return strings.ContainsAny(flow, "123456789") }
