package tests

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// What becomes of a job whose attempts all end the same way, by its number of retries: the table of
// outcomes. (M3, L2)
//
//	retries      0         1          25          unlimited
//	error        dead, 1   dead, 2    dead, 26    tried on
//	timeout      dead, 1   dead, 2    dead, 26    tried on
//	crash        dead, 1   dead, 2    dead, 26    tried on
//	cancel       gone, 1   gone, 1    gone, 1     gone, 1
func TestTableOfOutcomes(t *testing.T) {
	kinds := map[string]delayq.ErrorKind{
		"error": delayq.KindError, "timeout": delayq.KindTimeout, "crash": delayq.KindLeaseLost, "cancel": "",
	}
	for kind, recorded := range kinds {
		for _, retries := range []int{0, 1, 25, -1} {
			t.Run(fmt.Sprint(kind, "/", retries), func(t *testing.T) {
				queuetest.InBubble(t, func(b *queuetest.Bubble) {
					var rec queuetest.Recorder
					opts := []delayq.JobOption{delayq.Backoff(time.Hour, time.Hour), delayq.Timeout(time.Second)}
					if retries >= 0 {
						opts = append(opts, delayq.Retry(retries))
					}
					b.Enqueue("a", "1", opts...)
					attempts := retries + 1
					if retries < 0 {
						attempts = 40
					}
					// One server after the other, as a crash ends it. After that the next one finds
					// the lapsed lease and makes the job back off.
					for range 2*attempts + 2 {
						w := queuetest.NewWire(b.Redis)
						s := b.ServeOn(w, "a", rec.Then(func(ctx context.Context, _ *delayq.Job) error {
							switch kind {
							case "error":
								return queuetest.ErrTest
							case "crash":
								w.Cut()
							case "cancel":
								_, err := b.Client.Dequeue(b.Context(), "a", "1")
								require.NoError(b, err)
							}
							<-ctx.Done()
							return ctx.Err()
						}), delayq.Lease(time.Second), delayq.Drain(0))
						b.Pass(1500 * time.Millisecond)
						require.NoError(b, s.Stop())
						b.Pass(2 * time.Hour) // longer than the longest backoff of a crash
					}
					switch {
					case kind == "cancel":
						require.Len(b, rec.All(), 1)
						require.Empty(b, b.State("a", "1"))
						return
					case retries < 0:
						require.Contains(b, []delayq.State{delayq.StateScheduled, delayq.StateRunning}, b.State("a", "1")) // running: of the last crash
						require.GreaterOrEqual(b, len(rec.All()), attempts)
					default:
						info := b.Get("a", "1")
						require.Equal(b, delayq.StateDead, info.State)
						require.Equal(b, attempts, info.Attempt)
						require.Len(b, rec.All(), attempts)
					}
					for i, s := range rec.All() {
						require.Equal(b, i+1, s.Attempt)
					}
					for _, e := range b.Get("a", "1").Errors {
						require.Equal(b, recorded, e.Kind)
					}
				})
			})
		}
	}
}

// The layout of the first release, written down byte by byte: a server of this release works it
// off, whatever state the jobs are in, also of a topic that was paused. Do not change what is
// stored here: what a release has written a later one must read. (O1, O3)
func TestLayoutOfTheFirstRelease(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		// nonce, version 1, no flags, an array of 13: enqueued at 0946684700000, due in 5 s, …,
		// header lang=en, payload "hi"
		raw, err := hex.DecodeString(strings.ReplaceAll("1f8b5c03d177e240 01 01 9d ad30393436363834373030303030 00 cd1388"+
			" 06 cd07d0 ce003e8000 00000000 81a46c616e67a2656e 02 c4026869", " ", ""))
		require.NoError(b, err)
		const root = "q:{a}:"
		past, later := float64(b.Began.UnixMilli()-5), float64(b.Began.Add(time.Hour).UnixMilli())
		_, err = b.RDB.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, id := range []string{"ready", "handed over", "due", "later", "backing off", "lapsed", "leased", "dead"} {
				p.HSet(ctx, root+"pool", id, raw)
			}
			p.RPush(ctx, root+"ready", "ready", "", "cancelled long ago")
			p.RPush(ctx, root+"handoff", "handed over")
			p.ZAdd(ctx, root+"bucket", redis.Z{Score: past, Member: "due"}, redis.Z{Score: later, Member: "later"}, redis.Z{Score: later, Member: "backing off"})
			p.ZAdd(ctx, root+"leases", redis.Z{Score: past, Member: "lapsed"}, redis.Z{Score: past + 10_000.25, Member: "leased"})
			p.ZAdd(ctx, root+"dead", redis.Z{Score: past, Member: "dead"})
			p.HSet(ctx, root+"attempts", "backing off", 2, "dead", 7)
			p.HSet(ctx, root+"errors", "dead", `66:{"attempt":7,"at":1750000000000,"kind":"error","message":"broken"}`)
			p.HSet(ctx, root+"moved", "backing off", fmt.Sprintf("%.0f retry 0 0 0", later), "later", fmt.Sprintf("%.0f reschedule 0 0 0", later))
			p.HSet(ctx, root+"meta", "paused", "1750000000000", "pauses", "1750000000000 0 2 7 meupgrade")
			p.HSet(ctx, root+"stats", "enqueued", 9)
			return nil
		})
		require.NoError(b, err)
		for id, state := range map[string]delayq.State{
			"ready": delayq.StateReady, "due": delayq.StateScheduled, "later": delayq.StateScheduled, "backing off": delayq.StateScheduled,
			"leased": delayq.StateRunning, "dead": delayq.StateDead,
		} {
			info := b.Get("a", id)
			require.NoError(b, info.Undecodable)
			require.Equal(b, state, info.State, id)
			require.Equal(b, "hi", string(info.Payload))
			require.Equal(b, map[string]string{"lang": "en"}, info.Headers)
			require.Equal(b, 6, info.Retries)
		}
		require.Len(b, b.Get("a", "dead").Errors, 1)
		require.Equal(b, "broken", b.Get("a", "dead").Errors[0].Message)

		var rec queuetest.Recorder
		b.Serve("a", rec.Then(nil))
		b.Pass(5 * time.Second)
		require.Empty(b, rec.All(), "the pause counts")
		require.NoError(b, b.Client.Resume(ctx, "a", "me"))
		b.Pass(time.Second)
		require.Equal(b, map[string]int{"ready": 1, "handed over": 1, "due": 1, "lapsed": 1}, rec.Times())
		b.Pass(10 * time.Second)
		require.Len(b, rec.Of("leased"), 1, "after its lease")
		require.Equal(b, 2, rec.Of("leased")[0].Attempt)
		require.NoError(b, b.Client.Revive(ctx, "a", "dead"))
		synctest.Wait()
		require.Equal(b, 8, rec.Of("dead")[0].Attempt)
		b.Pass(time.Hour)
		require.Equal(b, 3, rec.Of("backing off")[0].Attempt)
		require.Len(b, rec.All(), 8)
		require.Len(b, rec.Times(), 8)
		for _, key := range b.Redis.Keys() {
			require.NotContains(b, []string{root + "pool", root + "attempts", root + "errors", root + "moved", root + "bucket", root + "dead"}, key, "left over")
		}
	})
}

// What a delayed job takes of Redis's memory beside its payload and its ID is what
// docs/operations.md says: about 250 bytes, and all of it comes back. (L3, L7)
func TestMemoryOfAJob(t *testing.T) {
	t.Parallel()
	own := redistest.Start(t)
	rdb := own.Client(t)
	client := delayq.NewClient(rdb)
	used := func() (bytes int64) {
		info, err := rdb.InfoMap(t.Context(), "memory").Result()
		require.NoError(t, err)
		_, err = fmt.Sscan(info["Memory"]["used_memory_dataset"], &bytes)
		require.NoError(t, err)
		return bytes
	}
	const payload = 100
	const jobs = 25_000 // the tables of Redis are then as full as with 50,000
	list := make([]delayq.NewJob, jobs)
	for i := range list {
		list[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprintf("%010d", i), Payload: make([]byte, payload), Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}}
	}
	before := used()
	_, err := client.EnqueueBatch(t.Context(), list)
	require.NoError(t, err)
	each := (used() - before) / jobs
	t.Logf("%d bytes a job", each)
	require.LessOrEqual(t, each, int64(payload+250))
	var done sync.WaitGroup
	for part := range slices.Chunk(list, jobs/20) {
		done.Go(func() {
			for _, one := range part {
				if _, err := client.Dequeue(t.Context(), "a", one.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
	queuetest.Until(t, func() bool { return used()-before < 1<<20 })
}
