package tests

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// A twin is two topics with the same jobs: mail has partitions of several calls, and plain has
// none.
type twin struct {
	*testing.T
	rdb    redis.UniversalClient
	prefix string
	client *delayq.Client
	insp   *delayq.Inspector
	began  time.Time
	m      part.Map
}

// eachTwin runs a test of such topics, divided by ID and by key. Each of three parts of the jobs
// was stored before another Partition call.
func eachTwin(t *testing.T, test func(w *twin)) {
	t.Parallel()
	for name, opts := range map[string][]delayq.PartitionOption{"by ID": nil, "by key": {delayq.ByKey()}} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
				prefix := redistest.Prefix(t)
				w := &twin{T: t, rdb: rdb, prefix: prefix, began: time.Now().Truncate(time.Second)}
				w.client, w.insp = delayq.NewClient(rdb, delayq.Prefix(prefix)), delayq.NewInspector(rdb, delayq.Prefix(prefix))
				w.store("a", 20)
				w.divide(3, opts...)
				w.store("b", 30)
				w.divide(5, opts...)
				w.store("c", 50)
				require.Len(t, w.m, 3)
				test(w)
			})
		})
	}
}

// divide divides the topic, and looks which keys stay in the places before, as servers do.
func (w *twin) divide(n int, opts ...delayq.PartitionOption) {
	w.Helper()
	require.NoError(w, w.client.Partition(w.Context(), "mail", n, opts...))
	m, err := part.ParseMap(hand.New(w, w.rdb, w.prefix, "mail").Map())
	require.NoError(w, err)
	w.m = m
	for _, place := range m.Places("mail") {
		hand.New(w, w.rdb, w.prefix, place).Pass()
	}
}

// store stores n jobs in both topics: a fifth of them is ready, a fifth dead, and the others are
// due within the next hours, some of them at the same time.
func (w *twin) store(name string, n int) {
	w.Helper()
	for _, topic := range []string{"mail", "plain"} {
		jobs := make([]delayq.NewJob, n)
		for i := range jobs {
			due := w.began.Add(time.Hour + time.Duration(i*37%17)*time.Minute)
			opts := []delayq.JobOption{delayq.Header("third", strconv.Itoa(i%3))}
			if i%5 != 0 {
				opts = append(opts, delayq.ProcessAt(due))
			}
			if i%2 == 0 {
				opts = append(opts, delayq.Key(fmt.Sprint("key", i%7, name))) // each is in one place
			}
			jobs[i] = delayq.NewJob{Topic: topic, ID: fmt.Sprintf("%s%02d", name, i), Payload: []byte("x"), Options: opts}
		}
		_, err := w.client.EnqueueBatch(w.Context(), jobs)
		require.NoError(w, err)
		for i := 1; i < n; i += 5 {
			require.NoError(w, w.client.Bury(w.Context(), topic, jobs[i].ID, fmt.Sprint("broken ", i)))
		}
	}
}

// stored checks that a time is one at which the jobs were stored.
func (w *twin) stored(at time.Time) {
	w.Helper()
	require.WithinRange(w, at, w.began, time.Now())
}

// places returns a hand for each place of mail.
func (w *twin) places() (list []*hand.Hand) {
	for _, name := range w.m.Places("mail") {
		list = append(list, hand.New(w, w.rdb, w.prefix, name))
	}
	return list
}

// pages reads all pages of a query.
func (w *twin) pages(q delayq.Query) (ids []string, pages int) {
	w.Helper()
	for {
		page, err := w.insp.Jobs(w.Context(), q)
		require.NoError(w, err)
		require.LessOrEqual(w, len(page.Jobs), max(q.Limit, 1))
		for _, info := range page.Jobs {
			require.Equal(w, q.Topic, info.Topic)
			ids = append(ids, info.ID)
		}
		if pages++; page.Next == "" {
			return ids, pages
		}
		require.NotEqual(w, q.Cursor, page.Next, "it goes on")
		q.Cursor, q.Offset = page.Next, 0
	}
}

// The pages of all partitions together are those of one topic, whatever the size of a page is, with
// and without filters. Jobs of one time are in the order of places.
func TestPagesOfPartitions(t *testing.T) {
	eachTwin(t, func(w *twin) {
		at := func(topic, id string) time.Time {
			info, err := w.insp.Job(w.Context(), topic, id)
			require.NoError(w, err)
			return info.Due
		}
		for name, narrow := range map[string]func(q *delayq.Query){
			"all":       func(*delayq.Query) {},
			"from":      func(q *delayq.Query) { q.From = w.began.Add(time.Hour + 5*time.Minute) },
			"to":        func(q *delayq.Query) { q.To = w.began.Add(time.Hour + 9*time.Minute) },
			"prefix":    func(q *delayq.Query) { q.IDPrefix = "b" },
			"key":       func(q *delayq.Query) { q.Key = "key4" },
			"header":    func(q *delayq.Query) { q.Headers, q.Budget = map[string]string{"third": "1"}, 10 },
			"no header": func(q *delayq.Query) { q.Headers, q.Budget = map[string]string{"third": "7"}, 1 },
			"error":     func(q *delayq.Query) { q.Error = "broken 1" },
		} {
			for _, state := range []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateDead} {
				for _, latest := range []bool{false, true} {
					if latest && name != "all" && name != "header" {
						continue
					}
					q := delayq.Query{Topic: "plain", State: state, Latest: latest}
					if narrow(&q); state != delayq.StateScheduled {
						q.From, q.To = time.Time{}, time.Time{}
					}
					budget := q.Budget
					q.Limit, q.Budget = 1000, 0
					want, _ := w.pages(q)
					wanted, exact, err := w.insp.Count(w.Context(), q)
					require.NoError(w, err)
					require.True(w, exact)
					for _, limit := range []int{3, 1000} {
						q.Topic, q.Limit, q.Budget = "mail", limit, budget
						got, pages := w.pages(q)
						what := fmt.Sprint(name, " ", state, " ", latest, " ", limit, " in ", pages)
						require.ElementsMatch(w, want, got, what)
						if state == delayq.StateScheduled {
							require.True(w, slices.IsSortedFunc(got, func(a, b string) int {
								if latest {
									a, b = b, a
								}
								return at("mail", a).Compare(at("mail", b))
							}), what)
						}
						first, err := w.insp.Jobs(w.Context(), q)
						require.NoError(w, err)
						require.EqualValues(w, map[delayq.State]int64{
							delayq.StateScheduled: w.total("plain", q), delayq.StateReady: 20, delayq.StateDead: 20,
						}[state], first.Total, what)
					}
					q.Budget = 0
					n, exact, err := w.insp.Count(w.Context(), q)
					require.NoError(w, err)
					require.Equal(w, []any{wanted, true}, []any{n, exact})
				}
			}
		}
	})
}

// total returns the number of scheduled jobs within the times of a query.
func (w *twin) total(topic string, q delayq.Query) int64 {
	n, _, err := w.insp.Count(w.Context(), delayq.Query{Topic: topic, State: delayq.StateScheduled, From: q.From, To: q.To})
	require.NoError(w, err)
	return n
}

// A page that is found by its number goes on like the pages that cursors lead to.
func TestPageNumbersOfPartitions(t *testing.T) {
	eachTwin(t, func(w *twin) {
		for _, state := range []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateDead} {
			for _, latest := range []bool{false, true} {
				q := delayq.Query{Topic: "mail", State: state, Latest: latest, Limit: 10}
				want, _ := w.pages(q)
				for _, offset := range []int{1, 2, 5, 19, 20, 37, 59, 60} {
					q.Offset = int64(offset)
					got, _ := w.pages(q)
					left := max(0, len(want)-offset)
					if state == delayq.StateReady { // entries that wake servers count there, too
						require.GreaterOrEqual(w, len(got), left)
						left = len(got)
					}
					require.Equal(w, fmt.Sprint(want[len(want)-left:]), fmt.Sprint(got), "%s %v %d", state, latest, offset)
				}
			}
		}
	})
}

// A cursor of before the topic was divided goes on, and meets every job that stays.
func TestCursorsOutliveAPartitionCall(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		w := &twin{T: t, rdb: rdb, prefix: redistest.Prefix(t), began: time.Now()}
		w.client, w.insp = delayq.NewClient(rdb, delayq.Prefix(w.prefix)), delayq.NewInspector(rdb, delayq.Prefix(w.prefix))
		w.store("a", 40)
		cursors := map[delayq.State]delayq.Cursor{}
		seen := map[delayq.State][]string{}
		states := []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateDead}
		for _, state := range states {
			page, err := w.insp.Jobs(t.Context(), delayq.Query{Topic: "mail", State: state, Limit: 3})
			require.NoError(t, err)
			cursors[state] = page.Next
			for _, info := range page.Jobs {
				seen[state] = append(seen[state], info.ID)
			}
		}
		require.NoError(t, w.client.Partition(t.Context(), "mail", 4))
		w.store("b", 20)
		for _, state := range states {
			rest, _ := w.pages(delayq.Query{Topic: "mail", State: state, Limit: 3, Cursor: cursors[state]})
			all, _ := w.pages(delayq.Query{Topic: "plain", State: state, Limit: 1000})
			all = slices.DeleteFunc(all, func(id string) bool { return id[0] == 'b' })
			got := slices.DeleteFunc(append(seen[state], rest...), func(id string) bool { return id[0] == 'b' })
			require.ElementsMatch(t, all, got, state)
		}
		_, err := w.insp.Jobs(t.Context(), delayq.Query{Topic: "mail", State: delayq.StateDead, Cursor: cursors[delayq.StateReady]})
		require.ErrorIs(t, err, delayq.ErrCursor)
	})
}

// Running jobs come partition by partition.
func TestRunningJobsOfPartitions(t *testing.T) {
	eachTwin(t, func(w *twin) {
		var want []string
		for _, h := range w.places() {
			for _, held := range h.Take(100, time.Minute) {
				want = append(want, held.ID)
			}
		}
		require.Len(w, want, 20)
		for _, limit := range []int{1, 3, 1000} {
			for _, latest := range []bool{false, true} {
				got, _ := w.pages(delayq.Query{Topic: "mail", State: delayq.StateRunning, Limit: limit, Latest: latest})
				require.ElementsMatch(w, want, got)
			}
		}
		n := 0
		for info, err := range w.insp.All(w.Context(), delayq.Query{Topic: "mail", State: delayq.StateRunning, Limit: 3}) {
			require.NoError(w, err)
			require.Contains(w, want, info.ID)
			n++
		}
		require.Equal(w, 20, n)
	})
}

// The numbers of a topic are the sums of its places.
func TestStatsOfPartitions(t *testing.T) {
	eachTwin(t, func(w *twin) {
		ctx := w.Context()
		require.NoError(w, w.client.SetLimits(ctx, "mail", delayq.Limits{Running: 20}))
		require.NoError(w, w.client.Pause(ctx, "mail", delayq.Pause{By: "ann"}))
		list, err := w.insp.Stats(ctx)
		require.NoError(w, err)
		require.Len(w, list, 2)
		mail, plain := list[0], list[1]
		require.Equal(w, []string{"mail", "plain"}, []string{mail.Topic, plain.Topic})
		require.Equal(w, delayq.Limits{Running: 20}, mail.Limits)
		require.True(w, mail.Paused)
		require.Len(w, mail.Pauses, 1)
		p := mail.Partitions
		require.NotNil(w, p)
		require.Nil(w, plain.Partitions)
		require.Equal(w, plain.Scheduled+plain.Ready+plain.Dead, mail.Scheduled+mail.Ready+mail.Dead)
		for _, one := range [][2]any{
			{plain.Scheduled, mail.Scheduled}, {plain.Ready, mail.Ready}, {plain.Dead, mail.Dead}, {plain.Overdue, mail.Overdue}, {plain.Keyed, mail.Keyed},
			{plain.NextDue, mail.NextDue}, {plain.Counters, mail.Counters}, {plain.Retrying, mail.Retrying},
		} {
			require.Equal(w, one[0], one[1])
		}
		w.stored(plain.OldestOverdue)
		w.stored(mail.OldestOverdue)
		require.Equal(w, 5, p.Count)
		require.Equal(w, w.m.Open().ByKey, p.ByKey)
		require.LessOrEqual(w, p.Least.Jobs, p.Most.Jobs)
		require.Equal(w, 2, p.Most.Generation)
		require.Len(w, p.Closing, 2)
		require.Equal(w, delayq.ClosingPartitions{Generation: 0, Count: 1, Jobs: 20}, p.Closing[0])
		require.Equal(w, delayq.ClosingPartitions{Generation: 1, Count: 3, ByKey: p.ByKey, Jobs: 30}, p.Closing[1])

		for _, topic := range []string{"mail", "plain"} {
			due, err := w.insp.Forecast(ctx, topic, w.began, 10*time.Minute, 12)
			require.NoError(w, err)
			within, err := w.insp.DueWithin(ctx, w.began, []time.Duration{65 * time.Minute, 2 * time.Hour}, topic, "none", topic)
			require.NoError(w, err)
			require.Equal(w, []int64{0, 0}, within[1])
			require.Equal(w, within[0], within[2])
			require.EqualValues(w, 60, within[0][1])
			require.Equal(w, within[0][1], sumOf(due))
		}
		names, err := w.insp.Topics(ctx)
		require.NoError(w, err)
		require.Equal(w, []string{"mail", "plain"}, names)
	})
}

func sumOf(list []int64) (n int64) {
	for _, one := range list {
		n += one
	}
	return n
}

// A job, a key and a failure are found wherever they are.
func TestPartitionsAreSearched(t *testing.T) {
	eachTwin(t, func(w *twin) {
		ctx := w.Context()
		for _, id := range []string{"a02", "b02", "c02", "a01", "c00"} {
			want, err := w.insp.Job(ctx, "plain", id)
			require.NoError(w, err)
			got, err := w.insp.Job(ctx, "mail", id)
			require.NoError(w, err)
			require.Equal(w, []any{"mail", want.State, want.Key, want.Payload}, []any{got.Topic, got.State, got.Key, got.Payload})
			if want.State == delayq.StateReady { // due at once, in one topic a little later than in the other
				w.stored(want.Due)
				w.stored(got.Due)
			} else {
				require.Equal(w, want.Due, got.Due)
			}
			found, err := w.insp.Find(ctx, id)
			require.NoError(w, err)
			require.Len(w, found, 2)
			require.Equal(w, "mail", found[0].Topic)
			require.Equal(w, id, found[0].ID)
		}
		_, err := w.insp.Job(ctx, "mail", "none")
		require.ErrorIs(w, err, delayq.ErrNotFound)
		found, err := w.insp.Find(ctx, "none")
		require.NoError(w, err)
		require.Empty(w, found)
		for _, limit := range []int{1, 2, 1000} {
			after, names := "", map[string]int64{}
			for {
				list, err := w.insp.Keys(ctx, "mail", after, limit)
				require.NoError(w, err)
				for _, k := range list {
					require.Zero(w, names[k.Key], "each key once")
					names[k.Key] = k.Waiting
					after = k.Key
				}
				if len(list) < limit {
					break
				}
			}
			want, err := w.insp.Keys(ctx, "plain", "", 1000)
			require.NoError(w, err)
			require.Len(w, names, len(want))
			for _, k := range want {
				require.Equal(w, k.Waiting, names[k.Key], k.Key)
				one, err := w.insp.Key(ctx, "mail", k.Key)
				require.NoError(w, err)
				require.Equal(w, k.Waiting, one.Waiting)
				require.NotEmpty(w, one.First)
			}
		}
		want, err := w.insp.Failures(ctx, "plain", delayq.StateDead, 0)
		require.NoError(w, err)
		got, err := w.insp.Failures(ctx, "mail", delayq.StateDead, 0)
		require.NoError(w, err)
		require.Equal(w, []any{want.Total, want.Groups[0].Count, want.Groups[0].Key}, []any{got.Total, got.Groups[0].Count, got.Groups[0].Key})
	})
}

// Apply acts on all jobs of all places, each once.
func TestApplyToPartitions(t *testing.T) {
	eachTwin(t, func(w *twin) {
		ctx := w.Context()
		act := func(state delayq.State, a delayq.Action, n int64, opts ...delayq.ApplyOption) {
			w.Helper()
			dry, err := w.client.Apply(ctx, delayq.Query{Topic: "mail", State: state}, a, append(opts, delayq.DryRun())...)
			require.NoError(w, err)
			require.Equal(w, n, dry.Matched)
			done, err := w.client.Apply(ctx, delayq.Query{Topic: "mail", State: state, Limit: 7}, a, opts...)
			require.NoError(w, err)
			require.Equal(w, []int64{n, n, 0, 0}, []int64{done.Matched, done.Done, done.Skipped, done.Failed})
		}
		act(delayq.StateDead, delayq.Revive(), 20)
		act(delayq.StateScheduled, delayq.Reschedule(delayq.ProcessAt(w.began.Add(5*time.Hour))), 60)
		act(delayq.StateScheduled, delayq.RunNow(), 60)
		act(delayq.StateReady, delayq.Bury("stop"), 100)
		some, err := w.client.Apply(ctx, delayq.Query{Topic: "mail", State: delayq.StateDead}, delayq.Delete(), delayq.AtMost(30))
		require.NoError(w, err)
		require.EqualValues(w, 30, some.Done)
		rest, err := w.client.Apply(ctx, delayq.Query{Topic: "mail", State: delayq.StateDead, Cursor: some.Next}, delayq.Delete())
		require.NoError(w, err)
		require.EqualValues(w, 70, rest.Done)
		for _, h := range w.places() {
			n, err := w.rdb.HLen(ctx, h.Keys.Pool).Result()
			require.NoError(w, err)
			require.Zero(w, n, h.Keys.Topic)
		}
	})
}

// An explanation says which partition has the job, and which ones close.
func TestExplainInPartitions(t *testing.T) {
	eachTwin(t, func(w *twin) {
		ctx := w.Context()
		for id, want := range map[string]string{
			"a02": "; it is in the topic itself, and new jobs go to 5 partitions; the topic itself closes, and has 20 jobs left; generation 1 closes: 3 of its 3 partitions have 30 jobs left.",
			"b02": "of generation 1, which has 3, and new jobs go to 5 partitions; the topic itself closes",
			"c02": "of generation 2, which has 5; the topic itself closes",
		} {
			e, err := w.insp.Explain(ctx, "mail", id)
			require.NoError(w, err)
			require.Contains(w, e.Verdict, want)
			require.Equal(w, "mail", e.Job.Topic)
			require.Equal(w, map[byte]int{'a': 0, 'b': 1, 'c': 2}[id[0]], e.Partition.Generation)
		}
		e, err := w.insp.Explain(ctx, "mail", "none")
		require.NoError(w, err)
		require.Nil(w, e.Job)
		_, err = w.client.Dequeue(ctx, "mail", "c02", delayq.Tombstone(time.Hour))
		require.NoError(w, err)
		e, err = w.insp.Explain(ctx, "mail", "c02")
		require.NoError(w, err)
		require.Equal(w, delayq.ReasonTomb, e.Reasons[0].Code)
		if w.m.Open().ByKey {
			return // limits are not those of partitions alone
		}
		require.NoError(w, w.client.SetLimits(ctx, "mail", delayq.Limits{Running: 9}))
		var waits string
		for _, h := range w.places()[4:] {
			if len(h.Take(1, time.Minute)) == 1 && len(h.List(h.Keys.Ready)) > 0 {
				waits = h.List(h.Keys.Ready)[0]
			}
		}
		require.NotEmpty(w, waits)
		e, err = w.insp.Explain(ctx, "mail", waits)
		require.NoError(w, err)
		at := slices.IndexFunc(e.Reasons, func(r delayq.Reason) bool { return r.Code == delayq.ReasonTopicLimit })
		require.GreaterOrEqual(w, at, 0, e.Verdict)
		require.Equal(w, "1 job is running in its partition, and its share of the limit of the topic (9) is 1.", e.Reasons[at].Text)
		require.Equal(w, []any{true, int64(9), int64(1)}, []any{e.Reasons[at].Partition, e.Reasons[at].Whole, e.Reasons[at].Limit})
	})
}

// Check looks at all partitions, and says what is wrong with them as a whole. Repair mends that.
func TestCheckOfPartitions(t *testing.T) {
	eachTwin(t, func(w *twin) {
		ctx := w.Context()
		check := func() map[delayq.FindingKind]int {
			report, err := w.insp.Check(ctx, "mail")
			require.NoError(w, err)
			require.EqualValues(w, 100, report.Jobs)
			return report.Found
		}
		require.Equal(w, map[delayq.FindingKind]int{delayq.FindingNotServed: 1}, check())
		require.NoError(w, w.rdb.HSet(ctx, script.ServersKey(w.prefix), "s", fmt.Sprint(time.Now().Add(time.Hour).UnixMilli(), ` {"topics":{"mail":{"slots":1}}}`)).Err())
		require.Empty(w, check())
		all := w.places()
		first, last := all[1], all[len(all)-1]
		require.NoError(w, w.rdb.Del(ctx, first.Keys.Tombs, all[0].Keys.Tombs).Err())
		require.NoError(w, w.rdb.HSet(ctx, last.Keys.Attempts, "gone", 1).Err())
		require.Equal(w, map[delayq.FindingKind]int{delayq.FindingNotClosed: 2, delayq.FindingOrphan: 1}, check())
		report, err := w.client.Repair(ctx, "mail")
		require.NoError(w, err)
		require.Equal(w, 3, report.Repaired)
		require.Equal(w, []delayq.Finding{
			{Key: "all:tombs", Kind: delayq.FindingNotClosed, Repaired: true},
			{Key: "all:tombs", Kind: delayq.FindingNotClosed, Repaired: true, Partition: delayq.PartitionRef{Generation: 1}},
			{Key: "attempts", ID: "gone", Kind: delayq.FindingOrphan, Repaired: true, Partition: delayq.PartitionRef{Generation: 2, Index: 4}},
		}, report.Findings)
		require.Empty(w, check())

		// A failover loses the latest map, and a client of an earlier release stores a job at home.
		require.NoError(w, w.rdb.HSet(ctx, all[0].Keys.Parts, "map", "1:3").Err())
		report, err = w.insp.Check(ctx, "mail")
		require.NoError(w, err)
		require.Equal(w, 1, report.Found[delayq.FindingMapLost])
		require.Equal(w, 20, report.Found[delayq.FindingStrayHome])
	})
}

// A topic is removed if all of its places are empty, and keeps its map.
func TestRemoveTopicWithPartitions(t *testing.T) {
	eachTwin(t, func(w *twin) {
		ctx := w.Context()
		err := w.client.RemoveTopic(ctx, "mail")
		require.ErrorIs(w, err, delayq.ErrNotEmpty)
		require.ErrorContains(w, err, "100 unfinished jobs, 0 leases, 0 done jobs and 0 schedules")
		for _, state := range []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateDead} {
			q := delayq.Query{Topic: "mail", State: state}
			if state == delayq.StateDead {
				q.Limit = 19 // one is left
			}
			opts := []delayq.ApplyOption{}
			if state == delayq.StateDead {
				opts = append(opts, delayq.AtMost(19))
			}
			_, err := w.client.Apply(ctx, q, delayq.Cancel(), opts...)
			require.NoError(w, err)
		}
		before := redistest.Dump(w, w.rdb, w.prefix)
		err = w.client.RemoveTopic(ctx, "mail")
		require.ErrorIs(w, err, delayq.ErrNotEmpty)
		require.ErrorContains(w, err, "1 unfinished jobs")
		require.Equal(w, before, redistest.Dump(w, w.rdb, w.prefix), "nothing is removed")
		_, err = w.client.Apply(ctx, delayq.Query{Topic: "mail", State: delayq.StateDead}, delayq.Cancel())
		require.NoError(w, err)
		require.NoError(w, w.client.RemoveTopic(ctx, "mail"))
		names, err := w.insp.Topics(ctx)
		require.NoError(w, err)
		require.Equal(w, []string{"plain"}, names)
		require.Equal(w, w.m.String(), w.places()[0].Map())
		for i, h := range w.places() {
			left, err := w.rdb.Keys(context.Background(), h.Keys.Root+"*").Result()
			require.NoError(w, err)
			for _, key := range left {
				require.NotContains(w, []string{h.Keys.Stats, h.Keys.Meta, h.Keys.Pool}, key, i)
			}
		}
		_, err = w.client.Enqueue(ctx, "mail", "again", nil)
		require.NoError(w, err)
		info, err := w.insp.Explain(ctx, "mail", "again")
		require.NoError(w, err)
		require.Equal(w, 2, info.Partition.Generation)
	})
}

// retire takes a generation of mail, whose places must be empty, from the map.
func (w *twin) retire(generation int) {
	w.Helper()
	home := hand.New(w, w.rdb, w.prefix, "mail")
	for range 2 {
		_, err := home.TryRetire(home.Map(), generation, true, 0)
		require.NoError(w, err)
	}
	m, err := part.ParseMap(home.Map())
	require.NoError(w, err)
	require.NotContains(w, m, part.Generation{Number: generation, Parts: 1})
	for _, g := range m {
		require.NotEqual(w, generation, g.Number)
	}
}

// eachDivided runs a test of a topic mail without jobs, whose home and first 2 partitions have left
// the map, and which has 3 partitions now. The places are all of them, the home first.
func eachDivided(t *testing.T, test func(w *twin, places []*hand.Hand)) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		w := &twin{T: t, rdb: rdb, prefix: redistest.Prefix(t), began: time.Now()}
		w.client, w.insp = delayq.NewClient(rdb, delayq.Prefix(w.prefix)), delayq.NewInspector(rdb, delayq.Prefix(w.prefix))
		require.NoError(t, w.client.Partition(t.Context(), "mail", 2))
		require.NoError(t, w.client.Partition(t.Context(), "mail", 3))
		home := hand.New(t, rdb, w.prefix, "mail")
		all, err := part.ParseMap(home.Map())
		require.NoError(t, err)
		require.Len(t, all, 3)
		w.retire(all[0].Number)
		w.retire(all[1].Number)
		w.m = all[2:]
		require.Equal(t, w.m.String(), home.Map())
		var places []*hand.Hand
		for _, name := range all.Places("mail") {
			places = append(places, hand.New(t, rdb, w.prefix, name))
		}
		require.Len(t, places, 6)
		test(w, places)
	})
}

// The history of a topic is that of all its partitions together, with those that were given up.
func TestHistoryOfPartitions(t *testing.T) {
	eachDivided(t, func(w *twin, places []*hand.Hand) {
		now, err := w.rdb.Time(w.Context()).Result()
		require.NoError(w, err)
		want := map[delayq.Outcome]int64{}
		for i, h := range places {
			n := int64(1) << i
			require.NoError(w, tryChronicle(h, "1", fmt.Sprintf("acked %d retried 1 late0 %d ran3 %d", n, n, n)))
			want[delayq.OutcomeAcked] += n
			want[delayq.OutcomeRetried]++
		}
		sum := lastHour(w.T, w.insp, "mail", now)
		require.Equal(w, want, sum.Outcomes)
		require.EqualValues(w, 63, sum.Lateness.Count())
		require.EqualValues(w, 63, sum.RunTime.Count())
	})
}

// Jobs that were handed over in vain are listed together, the latest first, up to 100: those of
// partitions that were given up too.
func TestUndeliveredOfPartitions(t *testing.T) {
	eachDivided(t, func(w *twin, places []*hand.Hand) {
		at := time.UnixMilli(1_700_000_000_000)
		for i := range 120 {
			entry := fmt.Sprintf(`{"at":%d,"from":"%d","topic":"bill","id":"%03d","reason":"why"}`, at.Add(time.Duration(i)*time.Second).UnixMilli(), i%6, i)
			require.NoError(w, w.rdb.LPush(w.Context(), places[i%6].Keys.Undelivered, entry).Err())
		}
		list, err := w.insp.Undelivered(w.Context(), "mail")
		require.NoError(w, err)
		require.Len(w, list, 100)
		for i, u := range list {
			n := 119 - i
			require.Equal(w, delayq.UndeliveredJob{At: at.Add(time.Duration(n) * time.Second), From: strconv.Itoa(n % 6), Topic: "bill", ID: fmt.Sprintf("%03d", n), Reason: "why"}, u)
		}
	})
}

// The jobs of schedules are in the topic itself, also when that has left the map. Whoever knows the
// partitions finds them there, and all views have them.
func TestJobsOfSchedulesStayAtHome(t *testing.T) {
	eachDivided(t, func(w *twin, places []*hand.Hand) {
		ctx := w.Context()
		require.NoError(w, w.client.Schedule(ctx, "mail", "nightly", delayq.Every(time.Hour), nil, delayq.Retry(3)))
		fresh, knows := delayq.NewClient(w.rdb, delayq.Prefix(w.prefix)), delayq.NewClient(w.rdb, delayq.Prefix(w.prefix))
		_, err := knows.Enqueue(ctx, "mail", "other", nil, delayq.ProcessIn(time.Hour))
		require.NoError(w, err)
		trigger := func() string {
			id, err := w.client.Trigger(ctx, "mail", "nightly")
			require.NoError(w, err)
			return id
		}
		for name, c := range map[string]*delayq.Client{"with an old map": w.client, "with no map": fresh, "whose map has no home": knows} {
			w.Log("a client ", name)
			id := trigger()
			n, err := w.rdb.HExists(ctx, places[0].Keys.Pool, id).Result()
			require.NoError(w, err)
			require.True(w, n)
			info, err := c.Get(ctx, "mail", id)
			require.NoError(w, err)
			require.Equal(w, []any{"mail", "nightly", delayq.StateReady}, []any{info.Topic, info.Schedule, info.State})
			require.NoError(w, c.Reschedule(ctx, "mail", id, delayq.ProcessIn(time.Hour)))
			require.NoError(w, c.Bury(ctx, "mail", id, "why"))
			require.NoError(w, c.Revive(ctx, "mail", id))
			state, err := c.Dequeue(ctx, "mail", id)
			require.NoError(w, err)
			require.Equal(w, delayq.StateReady, state)
		}

		id := trigger()
		info, err := w.insp.Job(ctx, "mail", id)
		require.NoError(w, err)
		require.Equal(w, "nightly", info.Schedule)
		found, err := w.insp.Find(ctx, id)
		require.NoError(w, err)
		require.Len(w, found, 1)
		e, err := w.insp.Explain(ctx, "mail", id)
		require.NoError(w, err)
		require.Equal(w, delayq.PartitionRef{}, e.Partition)
		require.Contains(w, e.Verdict, "it is in the topic itself")
		for _, latest := range []bool{false, true} {
			got, _ := w.pages(delayq.Query{Topic: "mail", State: delayq.StateReady, Latest: latest})
			require.Equal(w, []string{id}, got)
		}
		stats, err := w.insp.Stats(ctx, "mail")
		require.NoError(w, err)
		require.EqualValues(w, []int64{1, 1, 1}, []int64{stats[0].Ready, stats[0].Scheduled, stats[0].Schedules})
		require.Empty(w, stats[0].Partitions.Closing)
		report, err := w.insp.Check(ctx, "mail")
		require.NoError(w, err)
		require.Zero(w, report.Found[delayq.FindingStrayHome])
		applied, err := w.client.Apply(ctx, delayq.Query{Topic: "mail", State: delayq.StateReady}, delayq.Cancel())
		require.NoError(w, err)
		require.EqualValues(w, 1, applied.Done)
		_, err = w.insp.Job(ctx, "mail", id)
		require.ErrorIs(w, err, delayq.ErrNotFound)
	})
}

// A page of jobs that are merged looks at some entries of each place, even with a Budget of one,
// and the next page can count them again. Where places come one after the other, an entry counts
// once.
func TestExaminedInPartitions(t *testing.T) {
	eachTwin(t, func(w *twin) {
		examined := func(q delayq.Query) (sum int) {
			for {
				page, err := w.insp.Jobs(w.Context(), q)
				require.NoError(w, err)
				require.LessOrEqual(w, page.Examined, max(q.Budget, len(w.places())))
				sum += page.Examined
				if q.Cursor = page.Next; q.Cursor == "" {
					return sum
				}
			}
		}
		require.Greater(w, examined(delayq.Query{Topic: "mail", State: delayq.StateScheduled, Limit: 5, Budget: 1000}), 60)
		require.Equal(w, 60, examined(delayq.Query{Topic: "mail", State: delayq.StateScheduled, Limit: 1000, Budget: 1000}))
		examined(delayq.Query{Topic: "mail", State: delayq.StateScheduled, Limit: 100, Budget: 1})
		for _, h := range w.places() {
			h.Take(100, time.Minute)
		}
		require.Equal(w, 20, examined(delayq.Query{Topic: "mail", State: delayq.StateRunning, Limit: 5, Budget: 1000}))
	})
}

// The limits of a topic are divided among the places of its map. A home that has left it keeps its
// share, for the jobs of schedules.
func TestLimitsOfARetiredHome(t *testing.T) {
	eachDivided(t, func(w *twin, places []*hand.Hand) {
		require.NoError(w, w.client.SetLimits(w.Context(), "mail", delayq.Limits{Running: 10}))
		var running []int
		for _, h := range append([]*hand.Hand{places[0]}, places[3:]...) {
			flow, err := w.rdb.HGet(w.Context(), h.Keys.Meta, "flow").Result()
			require.NoError(w, err)
			var n int
			_, err = fmt.Sscan(flow, &n)
			require.NoError(w, err)
			running = append(running, n)
		}
		require.Equal(w, []int{3, 3, 2, 2}, running)
		stats, err := w.insp.Stats(w.Context(), "mail")
		require.NoError(w, err)
		require.Equal(w, delayq.Limits{Running: 10}, stats[0].Limits)
	})
}

// A user that is limited to one topic can do with its partitions what it can do with a topic, if
// each of its patterns stands for them too, as docs/security.md says. Without that it can do
// nothing there.
func TestUsersOfOneTopicWithPartitions(t *testing.T) {
	redistest.Need(t)
	rs := redistest.Start(t, redistest.NoRoles...)
	admin := rs.Client(t)
	as := func(role string, topics ...string) *delayq.Client {
		user := aclUser(t, role)
		words := []string{user[0], "reset"}
		for _, word := range user[1:] {
			if !strings.Contains(word, ":{*}:") {
				words = append(words, word)
				continue
			}
			for _, topic := range topics {
				words = append(words, strings.Replace(word, "{*}", "{"+topic+"}", 1))
			}
		}
		setUser(t, admin, words...)
		return delayq.NewClient(queuetest.ACLClient(t, rs, role))
	}
	ctx := t.Context()
	operator := as("operator", "mail", "mail#*")
	require.NoError(t, operator.Partition(ctx, "mail", 3))
	require.NoError(t, operator.Partition(ctx, "mail", 4, delayq.ByKey()))
	require.Error(t, operator.Partition(ctx, "post", 3))
	producer := as("producer", "mail", "mail#*")
	for i := range 20 {
		id := strconv.Itoa(i)
		_, err := producer.Enqueue(ctx, "mail", id, nil, delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
		require.NoError(t, producer.Reschedule(ctx, "mail", id, delayq.ProcessIn(2*time.Hour)))
		_, err = producer.Dequeue(ctx, "mail", id)
		require.NoError(t, err)
	}
	require.NoError(t, operator.Pause(ctx, "mail", delayq.Pause{By: "ann"}))
	require.NoError(t, operator.SetLimits(ctx, "mail", delayq.Limits{Running: 100}))

	_, err := as("producer", "mail").Enqueue(ctx, "mail", "x", nil)
	require.ErrorContains(t, err, "NOPERM")
}
