package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

// A partitionsRecord describes the partitions of a topic.
type partitionsRecord struct {
	Count   int                      `json:"count"` // those that take new jobs
	ByKey   bool                     `json:"by_key,omitempty"`
	Least   partitionLoad            `json:"least"` // the one with the fewest unfinished jobs
	Most    partitionLoad            `json:"most"`
	Closing []closingPartitionRecord `json:"closing,omitempty"` // of earlier calls, the oldest first
}

// A partitionRef names a partition of a topic. Generation 0 is the topic itself.
type partitionRef struct {
	Generation int `json:"generation"`
	Index      int `json:"index"`
}

// A partitionLoad is the work of a partition.
type partitionLoad struct {
	partitionRef
	Jobs    int64 `json:"jobs"`
	Overdue int64 `json:"overdue"`
	Running int64 `json:"running"`
}

// A closingPartitionRecord has the partitions of one call, which take no new jobs.
type closingPartitionRecord struct {
	Generation int   `json:"generation"`
	Count      int   `json:"count"`
	ByKey      bool  `json:"by_key,omitempty"`
	Jobs       int64 `json:"jobs"`
	Kept       int64 `json:"kept"`
}

func partitionsOf(s *delayq.PartitionStats) *partitionsRecord {
	if s == nil {
		return nil
	}
	load := func(l delayq.PartitionLoad) partitionLoad {
		return partitionLoad{partitionRef(l.PartitionRef), l.Jobs, l.Overdue, l.Running}
	}
	r := &partitionsRecord{Count: s.Count, ByKey: s.ByKey, Least: load(s.Least), Most: load(s.Most)}
	for _, c := range s.Closing {
		r.Closing = append(r.Closing, closingPartitionRecord(c))
	}
	return r
}

// partitionOf returns the record of where something is, or nil if the topic itself has it.
func partitionOf(ref delayq.PartitionRef) *partitionRef {
	if ref == (delayq.PartitionRef{}) {
		return nil
	}
	r := partitionRef(ref)
	return &r
}

// text writes a partition for people.
func (r *partitionRef) text() string {
	switch {
	case r == nil:
		return "-"
	case r.Generation == 0:
		return "the topic itself"
	}
	return fmt.Sprintf("partition %d of generation %d", r.Index, r.Generation)
}

func (l *partitionLoad) text() string {
	return fmt.Sprintf("%s: %s, %s overdue, %s running", l.partitionRef.text(), count(l.Jobs, "job"), number(l.Overdue), number(l.Running))
}

// countText writes how many partitions a topic has, and by what its jobs are divided.
func (r *partitionsRecord) countText() string {
	if r == nil {
		return "none"
	}
	return count(r.Count, "partition") + " by " + dividedBy(r.ByKey)
}

func dividedBy(key bool) string {
	if key {
		return "key"
	}
	return "ID"
}

// pairs returns the partitions that take new jobs as names and values for people.
func (r *partitionsRecord) pairs() []string {
	if r == nil {
		return nil
	}
	return []string{"partitions", number(r.Count) + " by " + dividedBy(r.ByKey), "least loaded", r.Least.text(), "most loaded", r.Most.text()}
}

// closing returns what the generations before those partitions have left, as names and values.
func (r *partitionsRecord) closing() (pairs []string) {
	if r == nil {
		return nil
	}
	for _, c := range r.Closing {
		what := "the topic itself"
		if c.Generation > 0 {
			what = fmt.Sprintf("generation %d, %s by %s", c.Generation, count(c.Count, "partition"), dividedBy(c.ByKey))
		}
		pairs = append(pairs, "closing", fmt.Sprintf("%s: %s left, and %s kept", what, count(c.Jobs, "job"), number(c.Kept)))
	}
	return pairs
}

// mostPartitions is a bound that the library has too.
const mostPartitions = 1024

func (a *app) partitionCommand() *cobra.Command {
	var create bool
	byKey := new(bool)
	cmd := &cobra.Command{
		Use:   "partition TOPIC [N]",
		Short: "Show the partitions of a topic, or divide it into others",
		Long: `Show the partitions of a topic: how many jobs each generation has, and which partition
has the fewest and the most jobs. JOBS are unfinished ones, dead ones too. Those of the
open generation include the jobs of schedules, which stay in the topic itself. KEPT are
done jobs, closed IDs, flows, and jobs that runs have handed over.

With N, from 1 to 1,024, divide the topic into N partitions, so that all nodes of a Redis
Cluster share its work and its memory: choose four for each master. Clients and servers
go on, and nothing changes for them. New jobs go to the new partitions, which are a
generation. Those before it close: they keep the jobs that they have, and servers give
them up within about a minute when nothing is left. Generation 0 is the topic itself.
Stderr says what there was before.

Jobs are divided by their IDs, or with --by-key by their keys, so that all jobs of a key
are in one partition. Limits of keys need that, and so does --ordered of delayq limits.
Without the flag, a topic that is divided by key stays so.

If the topic cannot be divided so, nothing is done, and the exit code is 2:

  - It has limits of keys, and is not divided by key.
  - Its limits are too low to give each partition that has jobs a share of the running
    jobs, and of the rate.
  - 8 generations have jobs. Wait until the oldest has none.
  - A live server is of a release without partitions.
  - Its name has more than 231 bytes.

The exit code 6 means that the topic may be divided, or in part. Then repeat the command.`,
		Example: `  delayq partition mail:welcome
  delayq partition mail:welcome 12
  delayq partition account 12 --by-key`,
		Args:              counted(1, 2, "a topic, and a number of partitions to divide it"),
		ValidArgsFunction: a.completeArgs(a.topicNames, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch given := cmd.Flags().Changed("by-key"); {
			case len(args) == 1 && given:
				return usage("--by-key: the number of partitions is missing")
			case len(args) == 2:
				if !given {
					byKey = nil
				}
				if err := a.partition(cmd.Context(), args[0], args[1], byKey, create); err != nil {
					return err
				}
			}
			list, err := a.stats(cmd.Context(), args[:1])
			if err != nil {
				return err
			}
			r := list[0]
			r.Counters = nil
			return object(a, schemaTopic, r, r.Topic, func(w io.Writer) error { return a.showPartitions(w, r) })
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(byKey, "by-key", false, "the jobs of a key are in one partition; --by-key=false ends that")
	cmd.Flags().BoolVar(&create, "create", false, "also for a topic that has no jobs, no schedules and no server yet")
	return cmd
}

// partition divides a topic, and says what it was before. byKey is nil to keep how its jobs are
// divided.
func (a *app) partition(ctx context.Context, topic, partitions string, byKey *bool, create bool) error {
	n, err := strconv.Atoi(partitions)
	if err != nil || n < 1 || n > mostPartitions {
		return usage("%q partitions: must be a number from 1 to %s", partitions, number(mostPartitions))
	}
	if err := a.known(ctx, []string{topic}, create); err != nil {
		return err
	}
	insp, err := a.inspector()
	if err != nil {
		return err
	}
	list, err := insp.Stats(ctx, topic)
	if err != nil {
		return err
	}
	before := partitionsOf(list[0].Partitions)
	after := partitionsRecord{Count: n, ByKey: before != nil && before.ByKey}
	if byKey != nil {
		after.ByKey = *byKey
	}
	var opts []delayq.PartitionOption
	if after.ByKey {
		opts = append(opts, delayq.ByKey())
	}
	client, err := a.queue()
	if err != nil {
		return err
	}
	if err := withFlag(a.acted(client.Partition(a.act(ctx), topic, n, opts...))); err != nil {
		return err
	}
	switch was := before.countText(); {
	case before == nil:
		a.say("%s had no partitions before", topic)
	case was == after.countText():
		a.say("%s had %s already", topic, was)
	default:
		a.say("%s had %s before", topic, was)
	}
	return nil
}

// withFlag adds the flag to an error that names the option of the library.
func withFlag(err error) error {
	if errors.Is(err, delayq.ErrInvalid) && strings.Contains(err.Error(), "ByKey") {
		return fmt.Errorf("%w: delayq partition has the flag --by-key", err)
	}
	return err
}

// showPartitions writes the partitions of a topic for people.
func (a *app) showPartitions(w io.Writer, r *topicRecord) error {
	pairs := []string{"topic", r.Topic, "state", a.stateText(r)}
	if r.Partitions == nil {
		return a.fields(w, append(pairs, "partitions", r.Partitions.countText())...)
	}
	if err := a.fields(w, append(pairs, r.Partitions.pairs()...)...); err != nil {
		return err
	}
	fmt.Fprintln(w)
	open := r.Scheduled + r.Ready + r.Running + r.Dead
	t := &table{a: a, heads: []string{"GENERATION", "STATE", "PARTITIONS", "BY", "JOBS", "KEPT"}, right: []bool{true, false, true, false, true, true}}
	for _, c := range r.Partitions.Closing {
		open -= c.Jobs
		by := dividedBy(c.ByKey)
		if c.Generation == 0 {
			by = "-"
		}
		if err := t.add([]string{strconv.Itoa(c.Generation), "closing", number(c.Count), by, number(c.Jobs), number(c.Kept)}); err != nil {
			return err
		}
	}
	p := r.Partitions
	if err := t.add([]string{
		strconv.Itoa(p.Most.Generation), "open", number(p.Count), dividedBy(p.ByKey), number(max(0, open)), "-", // the jobs move meanwhile
	}); err != nil {
		return err
	}
	return t.end()
}
