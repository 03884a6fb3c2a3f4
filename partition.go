package delayq

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

// A PartitionOption is an option of [Client.Partition]: [ByKey].
type PartitionOption interface{ applyPartition(*partitionOptions) }

type partitionOptions struct{ byKey bool }

type byKey struct{}

func (byKey) applyPartition(o *partitionOptions) { o.byKey = true }

// ByKey divides the jobs of a topic by their [Key], so that the jobs of a key are in one partition:
// their order, and all limits of keys, are exact. They remain so when the topic is divided again: a
// key stays where it has jobs until it has none. Schedules, and [Again] with another key, are not
// part of that (docs/howto/scale.md). Jobs without a key are divided by their IDs. An
// ID is unique among the jobs of its key then. A call about a job by its ID alone, such as
// [Client.Dequeue], asks all partitions, and acts on each job that has the ID.
func ByKey() PartitionOption { return byKey{} }

// Partition divides a topic into n partitions, which are in different slots of a Redis Cluster, so
// that all of its nodes share the work and the memory. It is online: clients and servers go on, and
// nothing changes for them. Partition can be called again with another n. docs/howto/scale.md tells
// when to use it, and how many partitions to choose: four for each master.
//
// New jobs go to the new partitions. Those that are there stay where they are until they have
// ended, and servers look after them. A topic with jobs of more than 8 Partition calls cannot be
// divided again until the oldest have ended.
//
// The limits of the topic are divided, too, and remain upper bounds: a partition gets its share of
// the running jobs and of the rate. Jobs that run already continue, as with [Client.SetLimits].
// Pauses, holds and other settings are copied.
//
// All clients and servers must be of a release that has Partition. An earlier server is seen, and
// then the call returns ErrInvalid. An earlier client is not: it stores its jobs as before, and
// they run, but their IDs are not compared with those in partitions.
//
// Range of n: 1 to 1,024. Errors: [ErrInvalid] if n, the topic or the limits do not allow it: a
// topic with limits of keys or [Limits.Ordered] needs [ByKey], and Limits.Running must be greater
// than the number of partitions, with those of earlier calls. [ErrUnknownOutcome], the error of the
// context, or that of Redis: call Partition again. Each call makes partitions of its own, so what
// one has prepared in vain is not used. Cost: a few calls for each partition, and one for each key
// that has limits or is held.
func (c *Client) Partition(ctx context.Context, topic string, n int, opts ...PartitionOption) error {
	ctx, end := c.begin(ctx, CallEvent{Name: "partition", Topic: topic})
	place := script.Place{Call: "partition", Topic: topic}
	var o partitionOptions
	var errs []error
	for _, opt := range opts {
		if opt == nil {
			errs = append(errs, errors.New("nil PartitionOption"))
			continue
		}
		opt.applyPartition(&o)
	}
	g := part.Generation{Parts: n, ByKey: o.byKey}
	if n < 1 || n > part.Most {
		errs = append(errs, fmt.Errorf("n(%d): must be from 1 to %d", n, part.Most))
	}
	if most := script.MaxTopicLen - part.NameRoom; len(topic) > most {
		errs = append(errs, fmt.Errorf("topic of %d bytes, at most %d are allowed for one with partitions", len(topic), most))
	}
	if err := errors.Join(c.validate(ctx, topic, ""), invalid(errs)); err != nil {
		return end.err(place.At(err))
	}
	done, err := c.partition(ctx, topic, g)
	return end.err(c.acted(ctx, place, partsOf(g), partsOf(done.Before.Open()), place.At(err)))
}

// partsOf describes a generation for the audit.
func partsOf(g part.Generation) string {
	text := fmt.Sprintf("%d partitions", g.Parts)
	if g.Parts == 1 {
		text = "1 partition"
	}
	if g.ByKey {
		text += " by key"
	}
	return text
}

func (c *Client) partition(ctx context.Context, topic string, g part.Generation) (done commit.Resized, err error) {
	if err := c.refuseEarlier(ctx); err != nil {
		return done, err
	}
	if !g.ByKey {
		if err := c.refuseKeys(ctx, topic); err != nil {
			return done, err
		}
	}
	done, err = c.commits.Resize(ctx, topic, g, commit.Settings{
		Pauses: maxPauses, KeyLimits: mostKeyLimits, HeldKeys: mostHeldKeys, ByID: withoutLimitsOfKeys,
	})
	if errors.Is(err, commit.ErrGenerations) || errors.Is(err, record.ErrShare) {
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return done, err
}

// refuseEarlier returns an error if a server of a release without partitions is live.
func (c *Client) refuseEarlier(ctx context.Context) error {
	servers, err := c.inspector().Servers(ctx)
	if err != nil {
		return err
	}
	for _, s := range servers {
		if !s.partitions {
			return fmt.Errorf("%w: the server %s, version %q, is of a release without partitions", ErrInvalid, s.ID, s.Version)
		}
	}
	return nil
}

// refuseKeys returns an error if keys of a topic have limits, which need ByKey.
func (c *Client) refuseKeys(ctx context.Context, topic string) error {
	meta := script.NewKeys(c.o.prefix, topic).Meta
	fields, err := c.rdb.HMGet(ctx, meta, "flow", "limited").Result()
	if err != nil {
		return c.scripts.Blame(ctx, err, meta)
	}
	flow, _ := fields[0].(string)
	limited, _ := fields[1].(string)
	return withoutLimitsOfKeys(flow, limited)
}

// withoutLimitsOfKeys returns an error if keys have limits, by the fields flow and limited of meta.
func withoutLimitsOfKeys(flow, limited string) error {
	n, _ := strconv.ParseInt(limited, 10, 64)
	if decodeLimits(flow).ofKeys() || n > 0 {
		return fmt.Errorf("%w: the topic has limits of keys, which need ByKey", ErrInvalid)
	}
	return nil
}

// everywhere makes a call for each place of a topic, unless one of them does not fit. It returns
// the reply of the home.
func (c *Client) everywhere(
	ctx context.Context, topic string, fits func(commit.Place) error, act func(ctx context.Context, at commit.Place) (script.Reply, error),
) (home script.Reply, err error) {
	err = c.commits.Everywhere(ctx, topic, false, fits, func(ctx context.Context, at commit.Place) error {
		r, err := act(ctx, at)
		if at.Keys.Topic == topic {
			home = r
		}
		return err
	})
	return home, err
}

// setLimits gives each place of a topic its share of limits. It returns the limits that the topic
// had.
func (c *Client) setLimits(ctx context.Context, topic string, l Limits) (before string, err error) {
	first := true
	fits := func(at commit.Place) error {
		err := needsByKey(at, l.ofKeys())
		if err == nil {
			_, err = record.ShareOfLimits(l.encode(), at.Index, at.Of)
		}
		return err
	}
	err = c.commits.Everywhere(ctx, topic, true, fits, func(ctx context.Context, at commit.Place) error {
		was, err := c.commits.SetShare(ctx, at, l.encode(), false)
		if err == nil && (l.ofKeys() || decodeLimits(was).ofKeys()) {
			err = c.unsure(serve.UnparkAll(ctx, c.scripts, at.Keys))
		}
		if at.Keys.Topic == topic && first {
			first, before = false, was
		}
		return err
	})
	if errors.Is(err, record.ErrShare) {
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return before, err
}

// anyPlace is what all places fit for.
func anyPlace(commit.Place) error { return nil }

// needsByKey returns an error if a place is a partition by ID, and the setting is one of keys.
func needsByKey(at commit.Place, ofKeys bool) error {
	if ofKeys && at.ByID {
		return fmt.Errorf("%w: the topic has partitions, and limits of keys need ByKey", ErrInvalid)
	}
	return nil
}
