package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

const (
	schemaMemory   = "delayq.memory/1"
	schemaMemories = "delayq.memories/1"
)

// A memoryRecord is the memory that a topic takes in Redis.
type memoryRecord struct {
	Topic    string            `json:"topic"`
	Bytes    int64             `json:"bytes"`
	Error    int64             `json:"error"` // how far the estimate of a tenth of the samples is away
	Jobs     int64             `json:"jobs"`
	Keys     []keyMemoryRecord `json:"keys"`              // the largest first
	Largest  []largeJobRecord  `json:"largest,omitempty"` // of one topic only
	Examined int               `json:"examined,omitempty"`
}

// A keyMemoryRecord is the memory of one key of Redis.
type keyMemoryRecord struct {
	Key   string `json:"key"`
	Bytes int64  `json:"bytes"`
	Error int64  `json:"error"`
}

// A largeJobRecord is one of the largest jobs.
type largeJobRecord struct {
	jobRef
	State       delayq.State `json:"state"`
	PayloadSize int          `json:"payload_size"`
}

const largestJobs = 5

func (a *app) memoryCommand() *cobra.Command {
	var samples, budget int
	cmd := &cobra.Command{
		Use:   "memory [TOPIC…]",
		Short: "Estimate the memory that topics take in Redis, and list their largest jobs",
		Long: `Estimate the memory that topics, or all topics, take in Redis, by MEMORY USAGE. It looks
at --samples entries of each key, and multiplies. ERROR is how far the estimate of a
tenth of them is away: it is small if the jobs are alike. Of one topic it lists the keys
and the largest jobs among the first --budget of each state.

The user of Redis needs the right to the command, which no role of "delayq acl" has:
ACL SETUSER delayq-inspector +memory|usage. Receipts of calls, which
expire within minutes, are left out.`,
		Example:           "  delayq memory\n  delayq memory mail:welcome --samples 5000",
		Args:              counted(0, -1, "topics"),
		ValidArgsFunction: a.completeArgs(a.topicNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if samples < 10 || samples > 1_000_000 {
				return usage("--samples %d: must be from 10 to 1,000,000", samples)
			}
			if budget < 1 || budget > 50_000 {
				return usage("--budget %d: must be from 1 to 50,000", budget)
			}
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				if args, err = insp.Topics(cmd.Context()); err != nil {
					return err
				}
			} else if err := a.known(cmd.Context(), args, false); err != nil {
				return err
			}
			var list []*memoryRecord
			for _, topic := range args {
				r, err := a.memoryOf(cmd.Context(), topic, samples)
				if err != nil {
					return err
				}
				list = append(list, r)
			}
			if len(args) != 1 {
				slices.SortStableFunc(list, func(x, y *memoryRecord) int { return cmp.Compare(y.Bytes, x.Bytes) })
				return all(a, a.memoryView(), list, nil)
			}
			if err := largest(cmd.Context(), insp, list[0], budget); err != nil {
				return err
			}
			return object(a, schemaMemory, list[0], list[0].Topic, func(w io.Writer) error { return a.showMemory(w, list[0]) })
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&samples, "samples", 500, "entries of each key to look at, from 10 to 1,000,000")
	f.IntVar(&budget, "budget", 2000, "jobs of each state among which the largest are found, up to 50,000")
	return cmd
}

func (a *app) memoryView() view[*memoryRecord] {
	return view[*memoryRecord]{schemaMemory, schemaMemories, "topics", []column[*memoryRecord]{
		{head: "TOPIC", cell: func(r *memoryRecord) string { return r.Topic }},
		{head: "JOBS", cell: func(r *memoryRecord) string { return number(r.Jobs) }, right: true},
		{head: "MEMORY", cell: func(r *memoryRecord) string { return bytesText(int(r.Bytes)) }, right: true},
		{head: "ERROR", cell: func(r *memoryRecord) string { return "± " + bytesText(int(r.Error)) }, right: true},
		{head: "BYTES", cell: func(r *memoryRecord) string { return number(r.Bytes) }, right: true, wide: true},
	}, func(r *memoryRecord) string { return r.Topic }, nil}
}

// keysOf returns the keys of a topic in Redis.
func keysOf(prefix, topic string) (list []string) {
	k := script.NewKeys(prefix, topic)
	fields := reflect.ValueOf(k).Elem()
	for i := range fields.NumField() {
		if key := fields.Field(i).String(); fields.Type().Field(i).IsExported() && strings.HasPrefix(key, k.Root) && key != k.Root {
			list = append(list, key)
		}
	}
	return list
}

// memoryOf estimates the memory of a topic.
func (a *app) memoryOf(ctx context.Context, topic string, samples int) (*memoryRecord, error) {
	rdb, err := a.redis()
	if err != nil {
		return nil, err
	}
	places, err := a.placesOf(ctx, rdb, topic)
	if err != nil {
		return nil, err
	}
	r := &memoryRecord{Topic: topic, Keys: []keyMemoryRecord{}}
	for _, place := range places {
		if err := r.measure(ctx, rdb, keysOf(a.prefix, place), samples); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(r.Keys, func(x, y keyMemoryRecord) int { return cmp.Compare(y.Bytes, x.Bytes) })
	list, err := a.stats(ctx, []string{topic})
	if err == nil {
		s := list[0]
		r.Jobs = s.Scheduled + s.Ready + s.Running + s.Dead + s.Done
	}
	return r, err
}

// placesOf returns the names of a topic and of all its partitions, also of those that have no jobs
// any more: something of them is left.
func (a *app) placesOf(ctx context.Context, rdb redis.UniversalClient, topic string) ([]string, error) {
	fields, err := rdb.HMGet(ctx, script.NewKeys(a.prefix, topic).Parts, "map", "past").Result()
	if err != nil {
		return nil, fmt.Errorf("memory of %s: %w", topic, err)
	}
	m, err := part.ParseMap(script.Reply(fields).Text(0))
	if err != nil {
		return nil, fmt.Errorf("memory of %s: %w", topic, err)
	}
	past, err := part.ParsePast(script.Reply(fields).Text(1))
	if err != nil {
		return nil, fmt.Errorf("memory of %s: %w", topic, err)
	}
	return slices.Concat(past, m).Places(topic), nil
}

// measure adds what keys of the topic take.
func (r *memoryRecord) measure(ctx context.Context, rdb redis.UniversalClient, keys []string, samples int) error {
	many, few := make([]*redis.IntCmd, len(keys)), make([]*redis.IntCmd, len(keys))
	_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, key := range keys {
			many[i], few[i] = pipe.MemoryUsage(ctx, key, samples), pipe.MemoryUsage(ctx, key, max(1, samples/10))
		}
		return nil
	})
	if err != nil && refused(err) {
		return &exitCode{exitRefused, "this user of Redis has no right to MEMORY USAGE, which no role has; add it with ACL SETUSER NAME +memory|usage: " + errorText(err)}
	}
	if err != nil && !errors.Is(err, redis.Nil) { // a key that does not exist
		return fmt.Errorf("memory of %s: %w", r.Topic, err)
	}
	for i, key := range keys {
		n, other := many[i].Val(), few[i].Val()
		if n == 0 {
			continue
		}
		name := key[strings.LastIndexByte(key, ':')+1:]
		at := slices.IndexFunc(r.Keys, func(k keyMemoryRecord) bool { return k.Key == name })
		if at < 0 {
			at = len(r.Keys)
			r.Keys = append(r.Keys, keyMemoryRecord{Key: name})
		}
		k, off := &r.Keys[at], max(n-other, other-n)
		k.Bytes, k.Error = k.Bytes+n, k.Error+off
		r.Bytes, r.Error = r.Bytes+n, r.Error+off
	}
	return nil
}

// largest finds the largest jobs of a topic.
func largest(ctx context.Context, insp *delayq.Inspector, r *memoryRecord, budget int) error {
	for _, state := range everyState {
		q := delayq.Query{Topic: r.Topic, State: state}
		for left := budget; left > 0; {
			q.Limit = min(left, mostPage)
			page, err := insp.Jobs(ctx, q)
			if err != nil {
				return err
			}
			left -= len(page.Jobs)
			r.Examined += len(page.Jobs)
			for _, info := range page.Jobs {
				j := jobOf(info, false)
				r.Largest = append(r.Largest, largeJobRecord{j.jobRef, j.State, j.PayloadSize})
			}
			slices.SortStableFunc(r.Largest, func(x, y largeJobRecord) int { return cmp.Compare(y.PayloadSize, x.PayloadSize) })
			r.Largest = r.Largest[:min(len(r.Largest), largestJobs)]
			if q.Cursor = page.Next; q.Cursor == "" {
				break
			}
		}
	}
	return nil
}

// showMemory writes the memory of a topic for people.
func (a *app) showMemory(w io.Writer, r *memoryRecord) error {
	perJob := ""
	if r.Jobs > 0 {
		perJob = bytesText(int(r.Bytes / r.Jobs))
	}
	if err := a.fields(w, "topic", r.Topic, "jobs", number(r.Jobs), "memory", fmt.Sprintf("%s ± %s", bytesText(int(r.Bytes)), bytesText(int(r.Error))), "per job", perJob); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t := &table{a: a, heads: []string{"KEY", "MEMORY", "ERROR"}, right: []bool{false, true, true}}
	for _, k := range r.Keys {
		if err := t.add([]string{k.Key, bytesText(int(k.Bytes)), "± " + bytesText(int(k.Error))}); err != nil {
			return err
		}
	}
	if err := t.end(); err != nil || len(r.Largest) == 0 {
		return err
	}
	fmt.Fprintf(w, "\nlargest of %s:\n", count(r.Examined, "job"))
	t = &table{a: a, heads: []string{"ID", "STATE", "SIZE", "BYTES"}, right: []bool{false, false, true, true}}
	for _, j := range r.Largest {
		if err := t.add([]string{idText(j.exact()), string(j.State), bytesText(j.PayloadSize), strconv.Itoa(j.PayloadSize)}); err != nil {
			return err
		}
	}
	return t.end()
}
