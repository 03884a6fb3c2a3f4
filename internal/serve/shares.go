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
// A worker has no right to the limits script. So it writes the fields, each of them as a whole. An
// operator can set other limits meanwhile. Then shared of the home has them: a server never changes
// it. The script tells all servers, and one of them divides them anew.

// limitsNow returns the limits of a topic and the share of the home, which is the same if the home
// is the only place. Both are empty if there are none.
func (t *Topic) limitsNow(ctx context.Context) (whole, flow string, err error) {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	fields, err := t.Server.Calls.HMGet(call, t.Keys.Meta, "shared", "flow").Result()
	if err != nil {
		return "", "", err
	}
	whole, _ = fields[0].(string)
	flow, _ = fields[1].(string)
	if whole == "" {
		whole = flow
	}
	return whole, flow, nil
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

// divide gives each place of a topic its share of the limits. flow is what the home has.
func (t *Topic) divide(ctx context.Context, m part.Map, whole, flow string) error {
	if whole == "" {
		return nil
	}
	places := commit.Places(t.Keys.Prefix(), t.Keys.Topic, m)
	share, exceeded := shareOf(whole, places[0])
	failed := exceeded
	others := make([]*script.Keys, 0, len(places))
	for _, p := range places[1:] {
		others = append(others, p.Keys)
	}
	has := make([]*redis.SliceCmd, len(others))
	err := t.Server.onMasters(ctx, others, func(ctx context.Context, i int, pipe redis.Pipeliner) {
		has[i] = pipe.HMGet(ctx, others[i].Meta, "flow", "shared")
	})
	var wrong []commit.Place
	var keys []*script.Keys
	if share != flow {
		wrong, keys = append(wrong, places[0]), append(keys, t.Keys)
	}
	for i, p := range places[1:] {
		if has[i] == nil || has[i].Err() != nil {
			err = errors.Join(err, errOf(has[i]))
			continue
		}
		share, exceeded := shareOf(whole, p)
		if failed == nil {
			failed = exceeded
		}
		if fields := has[i].Val(); fields[0] != share || p.Of > 1 && fields[1] != whole {
			wrong, keys = append(wrong, p), append(keys, p.Keys)
		}
	}
	if err != nil {
		return err
	}
	var told []redis.Cmder
	err = t.Server.onMasters(ctx, keys, func(ctx context.Context, i int, pipe redis.Pipeliner) {
		told = append(told, tellShare(ctx, pipe, wrong[i], whole)...)
	})
	for _, one := range told {
		err = cmp.Or(err, one.Err())
	}
	return cmp.Or(err, failed)
}

// takeShare gives a partition its share of the limits of its home, if it has no limits.
func (t *Topic) takeShare(ctx context.Context) error {
	whole, _, err := t.config.home.limitsNow(ctx)
	if err != nil || !limits(whole) {
		return err
	}
	_, flow, err := t.limitsNow(ctx)
	if err != nil || flow != "" {
		return err
	}
	for _, p := range commit.Places(t.Keys.Prefix(), t.called(), t.config.home.Loops.parts.have()) {
		if p.Keys.Topic != t.Keys.Topic {
			continue
		}
		pipe := t.Server.Calls.Pipeline()
		tellShare(ctx, pipe, p, whole)
		_, err = pipe.Exec(ctx)
	}
	return err
}

// errOf returns the error of a command, if it was sent.
func errOf(c *redis.SliceCmd) error {
	if c == nil {
		return nil
	}
	return c.Err()
}

// tellShare sets the share of a place, as the limits script does. The note comes first, because
// without it the places of cancelled jobs are not kept.
func tellShare(ctx context.Context, pipe redis.Pipeliner, p commit.Place, whole string) (sent []redis.Cmder) {
	k := p.Keys
	share, _ := shareOf(whole, p)
	if limits(share) {
		sent = append(sent, pipe.HSet(ctx, k.Sizes, "limits", 1))
	}
	_, partition := part.IsName(k.Topic)
	switch {
	case p.Of > 1 && partition:
		sent = append(sent, pipe.HSet(ctx, k.Meta, "flow", share, "shared", whole))
	case p.Of > 1:
		sent = append(sent, pipe.HSetNX(ctx, k.Meta, "shared", whole), pipe.HSet(ctx, k.Meta, "flow", share))
	default:
		sent = append(sent, pipe.HSet(ctx, k.Meta, "flow", share))
	}
	resume := record.Message{Verb: "resume", Topic: k.Topic}.Encode()
	return append(sent, pipe.HDel(ctx, k.Meta, "promise"), pipe.Publish(ctx, script.ControlChannel(k.Prefix()), resume))
}

// limits reports whether a text like that in the field flow of meta has a limit.
func limits(flow string) bool { return strings.ContainsAny(flow, "123456789") }
