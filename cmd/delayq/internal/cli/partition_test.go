package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/script"
)

// A topic is divided, and divided again. Every command that shows it says what there is.
func TestGoldenPartition(t *testing.T) {
	inWorld(t, func(w *world) {
		w.show("partition", "order:cancel")
		w.show("partition", "order:cancel", "-o", "json")
		w.every("partition", "order:cancel", "3")
		for i := range 5 {
			w.Enqueue("order:cancel", fmt.Sprint("new-", i), delayq.ProcessIn(time.Hour), delayq.Key(fmt.Sprint("key-", i%2)))
		}
		w.every("partition", "order:cancel")
		w.show("partition", "order:cancel", "2", "--by-key")
		w.show("partition", "order:cancel", "4") // it stays by key
		for i := range 5 {
			w.Enqueue("order:cancel", fmt.Sprint("more-", i), delayq.ProcessIn(time.Hour), delayq.Key(fmt.Sprint("key-", i%2)))
		}
		w.show("partition", "order:cancel", "4", "--by-key")
		w.show("partition", "order:cancel")
		for _, format := range formats {
			w.show("topic", "order:cancel", "--over", "0s", "--steps", "1", "-o", format)
		}
		w.show("topics", "-o", "jsonl")
		w.show("explain", "order:cancel", "order-1", "-o", "json")
		w.every("explain", "order:cancel", "more-0")
		w.show("partition", "order:cancel", "4", "--by-key=false")
		require.False(w, w.Stats("order:cancel").Partitions.ByKey)
		w.show("partition", "later", "2", "--create")
		w.show("partition", "later", "1") // it is known, although it has no jobs
		w.show("audit", "--limit", "6")
		w.golden("partition")
	})
}

// What is wrong is refused, and nothing is changed.
func TestGoldenPartitionRefused(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, wrong := range [][]string{
			{"0"}, {"-1"}, {"--", "-1"}, {"1025"}, {"2000"}, {"many"}, {"2.5"}, {"3", "4"}, {"--by-key"}, {"3", "--by-key=perhaps"}, {""},
		} {
			r := w.show(append([]string{"partition", "order:cancel"}, wrong...)...)
			require.Equal(w, exitUsage, r.code, wrong)
		}
		for _, topic := range []string{"bad{}", "order#1.0.3"} {
			for _, args := range [][]string{{topic}, {topic, "3"}, {topic, "3", "--create"}} {
				require.Equal(w, exitUsage, w.show(append([]string{"partition"}, args...)...).code, args)
			}
		}
		long := w.do("partition", strings.Repeat("x", 240), "3", "--create") // a topic can have this name without partitions
		require.Equal(w, exitUsage, long.code)
		require.Contains(w, long.err, "topic of 240 bytes, at most 231 are allowed for one with partitions")
		require.Equal(w, exitNotFound, w.show("partition", "order:cancle", "3").code)
		w.show("partition")

		// Limits that do not fit.
		w.ok("limits", "order:cancel", "--running", "5", "--ordered")
		require.Equal(w, exitUsage, w.show("partition", "order:cancel", "3").code)
		require.Equal(w, exitUsage, w.show("partition", "order:cancel", "6", "--by-key").code)
		w.ok("limits", "order:cancel", "--none")
		w.ok("key", "order:cancel", "k", "--running", "2")
		require.Equal(w, exitUsage, w.show("partition", "order:cancel", "3").code)
		w.ok("key", "order:cancel", "k", "--running", "0")
		require.Nil(w, w.Stats("order:cancel").Partitions)
		w.ok("partition", "order:cancel", "3")
		for text, args := range map[string][]string{
			"2 running jobs, and 4 partitions that have jobs":      {"limits", "order:cancel", "--running", "2"},
			"need ByKey: delayq partition has the flag --by-key\n": {"limits", "order:cancel", "--ordered"},
			"ByKey: delayq partition has the flag --by-key\n":      {"key", "order:cancel", "k", "--running", "2"},
		} {
			r := w.do(args...)
			require.Equal(w, exitUsage, r.code, args)
			require.Contains(w, r.err, text, args)
		}

		// A server of an earlier release.
		field := queuetest.Prefix + ":servers"
		beat, err := w.RDB.HGet(w.Context(), field, w.server).Result()
		require.NoError(w, err)
		old := strings.Replace(beat, `"partitions":true`, `"partitions":false`, 1)
		require.NotEqual(w, beat, old)
		require.NoError(w, w.RDB.HSet(w.Context(), field, w.server, old).Err())
		require.Equal(w, exitUsage, w.show("partition", "refund:poll", "3").code)
		require.Nil(w, w.Stats("refund:poll").Partitions)
		require.NoError(w, w.RDB.HSet(w.Context(), field, w.server, beat).Err())

		// Every generation has a job. The home is one of them.
		for n := 1; n < part.MostGenerations; n++ {
			w.ok("partition", "refund:poll", fmt.Sprint(n+1))
			w.Enqueue("refund:poll", fmt.Sprint("of-", n), delayq.ProcessIn(time.Hour))
		}
		w.show("partition", "refund:poll")
		require.Equal(w, exitUsage, w.show("partition", "refund:poll", "20").code)
		require.Equal(w, part.MostGenerations, w.Stats("refund:poll").Partitions.Count)
		w.golden("partition_refused")
	})
}

// If a part of the call is lost, the exit code says that Redis is not reachable, and the same
// command ends what it has begun.
func TestPartitionAgainAfterALostAnswer(t *testing.T) {
	inWorld(t, func(w *world) {
		w.dialer = func(*connection) (redis.UniversalClient, error) {
			rdb := w.Redis.Client()
			rdb.AddHook(&lostAnswer{isScript("part_close")})
			return rdb, nil
		}
		r := w.do("partition", "order:cancel", "3")
		require.Equal(w, exitUnreachable, r.code, r.err)
		require.Contains(w, r.err, "the topic has the new partitions, and some of the old ones are not closed yet")
		require.Empty(w, r.out)
		w.dialer = nil
		r = w.do("partition", "order:cancel", "3")
		require.Zero(w, r.code, r.err)
		require.Equal(w, "order:cancel had 3 partitions by ID already\n", r.err)
		require.Regexp(w, `(?m)^ +0  closing +1  - +4 +0$`, r.out)
	})
}

// When the generation before has nothing left, it leaves the list.
func TestPartitionsThatAreGivenUp(t *testing.T) {
	inWorld(t, func(w *world) {
		require.Regexp(w, `(?m)^ +0  closing +1  - +0 +0$`, w.ok("partition", "report:daily", "2"))
		w.Pass(3 * time.Minute)
		out := w.ok("partition", "report:daily")
		require.NotContains(w, out, "closing")
		require.Regexp(w, `(?m)^ +1  open +2  ID +0 +-$`, out)
		require.NotContains(w, w.ok("topic", "report:daily", "--over", "0s"), "closing")
	})
}

// A reason says of what its numbers are: a partition has a share of the limit of its topic.
func TestExplainTheShareOfALimit(t *testing.T) {
	inWorld(t, func(w *world) {
		w.Serve("slow", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			return ctx.Err()
		}, delayq.Concurrency(10))
		w.Pass(time.Second)
		w.ok("limits", "slow", "--running", "3")
		w.ok("partition", "slow", "2") // three places, as long as the topic itself has a share
		g := part.Generation{Number: 1, Parts: 2}
		for i := range 8 {
			w.Enqueue("slow", fmt.Sprint(i))
		}
		w.Pass(time.Second)
		waits := ""
		for i := range 8 {
			if w.State("slow", fmt.Sprint(i)) == delayq.StateReady {
				waits = fmt.Sprint(i)
			}
		}
		require.NotEmpty(w, waits)
		r := w.do("explain", "slow", waits, "-o", "json")
		w.valid([]string{"explain", "-o", "json"}, r)
		var found explanationRecord
		require.NoError(w, json.Unmarshal([]byte(r.out), &found))
		require.Equal(w, &partitionRef{1, g.Index(waits, "")}, found.Partition)
		at := slices.IndexFunc(found.Reasons, func(one reasonRecord) bool { return one.Code == delayq.ReasonTopicLimit })
		require.GreaterOrEqual(w, at, 0, r.out)
		reason := found.Reasons[at]
		require.True(w, reason.InPartition)
		require.EqualValues(w, 1, reason.Limit)
		require.EqualValues(w, 3, reason.Whole)
	})
}

// Reports of doctor say which partition has what they have found.
func TestDoctorNamesPartitions(t *testing.T) {
	inWorld(t, func(w *world) {
		w.ok("partition", "order:cancel", "3")
		w.Enqueue("order:cancel", "broken", delayq.ProcessIn(time.Hour))
		g := part.Generation{Number: 1, Parts: 3}
		index := g.Index("broken", "")
		keys := script.NewKeys(queuetest.Prefix, g.Name("order:cancel", index))
		require.EqualValues(w, 1, w.RDB.ZRem(w.Context(), keys.Bucket, "broken").Val())
		r := w.do("doctor", "order:cancel", "-o", "jsonl")
		require.Equal(w, exitError, r.code, r.err)
		var found findingRecord
		lines := strings.Split(strings.TrimSpace(r.out), "\n")
		at := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, `"broken"`) })
		require.GreaterOrEqual(w, at, 0, r.out)
		require.NoError(w, json.Unmarshal([]byte(lines[at]), &found))
		require.Equal(w, &partitionRef{1, index}, found.Partition)
		w.valid([]string{"doctor", "-o", "jsonl"}, r)
		require.Regexp(w, fmt.Sprintf(`(?m)broken +no_place +no +partition %d of generation 1$`, index), w.do("doctor", "order:cancel", "-o", "wide").out)
		require.NotContains(w, w.do("doctor", "order:cancel").out, "generation")
	})
}

// No command shows the name that a partition has in Redis: all of them speak of the topic.
func TestNobodySeesTheNamesOfPartitions(t *testing.T) {
	inWorld(t, func(w *world) {
		w.ok("partition", "mail:welcome", "3")
		w.ok("partition", "order:cancel", "2", "--by-key")
		for i := range 6 {
			w.Enqueue("mail:welcome", fmt.Sprint("dead-in-", i), delayq.Key("k"))
			w.Enqueue("order:cancel", fmt.Sprint("j", i), delayq.ProcessIn(time.Hour), delayq.Key("k"))
		}
		w.Pass(10 * time.Second)
		for _, args := range [][]string{
			{"topics"}, {"topic", "order:cancel", "--over", "0s"}, {"jobs", "order:cancel"}, {"jobs", "mail:welcome", "--state", "ready"}, {"job", "order:cancel", "j1"}, {"find", "j1"},
			{"explain", "order:cancel", "j1"}, {"explain", "mail:welcome", "dead-in-1"}, {"failures", "mail:welcome"}, {"keys", "mail:welcome"}, {"undelivered", "mail:welcome"}, {"key", "order:cancel", "k"},
			{"limits", "order:cancel"}, {"partition", "order:cancel"}, {"servers"}, {"server", w.server}, {"stats"}, {"check", "order:cancel"}, {"doctor"}, {"audit"}, {"export", "order:cancel"},
			{"job", "order:cancel", "nobody"}, {"cancel", "order:cancel", "nobody"}, {"cancel", "order:cancel", "j1"}, {"bury", "order:cancel", "j2"}, {"reschedule", "order:cancel", "--all", "--in", "2h", "--yes"},
		} {
			for _, format := range []string{formatWide, formatJSONL} {
				line := append(slices.Clone(args), "-o", format)
				if args[0] == "export" {
					line = args
				}
				r := w.do(line...)
				require.NotContains(w, r.out+r.err, "#", args)
				require.NotEqual(w, exitUsage, r.code, "%v: %s", args, r.err)
			}
		}
	})
}

// The memory of a topic is that of all its partitions.
func TestMemoryOfPartitions(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	read := func() (r memoryRecord) {
		t.Helper()
		require.NoError(t, json.Unmarshal([]byte(cli.ok("memory", "many", "--samples", "1000000", "-o", "json")), &r))
		return r
	}
	jobs := func(name string, n int) {
		list := make([]delayq.NewJob, n)
		for i := range list {
			list[i] = delayq.NewJob{Topic: "many", ID: fmt.Sprint(name, i), Payload: make([]byte, 1000), Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}}
		}
		_, err := client.EnqueueBatch(t.Context(), list)
		require.NoError(t, err)
	}
	jobs("old", 500)
	before := read()
	require.NoError(t, client.Partition(t.Context(), "many", 3))
	jobs("new", 500)
	after := read()
	require.EqualValues(t, 1000, after.Jobs)
	require.Greater(t, after.Bytes, before.Bytes*19/10)
	require.Equal(t, "pool", after.Keys[0].Key)
	names, sum := map[string]bool{}, int64(0)
	for _, k := range after.Keys {
		require.False(t, names[k.Key], "%s twice", k.Key)
		names[k.Key] = true
		sum += k.Bytes
	}
	require.Equal(t, after.Bytes, sum)
}
