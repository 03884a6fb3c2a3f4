package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// inspect returns an inspector of a fixture's queue, and the number of its calls by their scripts.
func inspect(f *queuetest.Fixture) (*delayq.Inspector, queuetest.CountScripts) {
	calls := queuetest.CountScripts{}
	return delayq.NewInspector(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(&calls)), calls
}

// lastPage returns a page that must be the last one.
func lastPage(t *testing.T, i *delayq.Inspector, q delayq.Query) []*delayq.JobInfo {
	t.Helper()
	q.Topic = "topic"
	page, err := i.Jobs(t.Context(), q)
	require.NoError(t, err)
	require.Empty(t, page.Next)
	return page.Jobs
}

// allOf returns the IDs of all jobs of a query, in their order.
func allOf(t *testing.T, i *delayq.Inspector, q delayq.Query) (ids []string) {
	t.Helper()
	for info, err := range i.All(t.Context(), q) {
		require.NoError(t, err)
		ids = append(ids, info.ID)
	}
	return ids
}

// What cancelled jobs leave behind in ready takes no place on a page.
func TestPagesAreFull(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		i, _ := inspect(f)
		enqueueMany(f, 1500, "gone")
		for i := range 1500 {
			f.Dequeue(fmt.Sprint("gone", i))
		}
		var live []string
		for i := range 10 {
			live = append(live, fmt.Sprint("live", i))
			f.Enqueue(live[i])
		}
		// One of those IDs stands in front too: it counts where it will be taken first.
		require.NoError(t, f.RDB.LPush(t.Context(), f.Key("ready"), live[7], "").Err())
		want := slices.Concat(live[7:8], live[:7], live[8:])
		for _, size := range []int{10, 1000} {
			q := delayq.Query{Topic: "topic", State: delayq.StateReady, Limit: size}
			page, err := i.Jobs(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, want, queuetest.InfoIDs(page.Jobs), "in pages of %d", size)
			require.EqualValues(t, 10, page.Total)
		}
		for _, size := range []int{1, 3} {
			got := allOf(t, i, delayq.Query{Topic: "topic", State: delayq.StateReady, Limit: size})
			require.Equal(t, live, slices.Compact(slices.Sorted(slices.Values(got))), "in pages of %d", size)
		}
	})
}

// A page has no gaps where the bucket or the dead name jobs that are not there, or not in this
// state.
func TestPagesHaveNoGaps(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		i, _ := inspect(f)
		places := make([]redis.Z, 1200)
		for i := range places {
			places[i] = redis.Z{Score: float64(i), Member: fmt.Sprint("nobody", i)}
		}
		for key, state := range map[string]delayq.State{"bucket": delayq.StateScheduled, "dead": delayq.StateDead} {
			f.Enqueue(key, delayq.ProcessIn(time.Hour))
			require.NoError(t, f.RDB.ZAdd(t.Context(), f.Key(key), append(places, redis.Z{Score: 2000, Member: key})...).Err())
			page, err := i.Jobs(t.Context(), delayq.Query{Topic: "topic", State: state, Limit: 1})
			require.NoError(t, err)
			require.Equal(t, []string{key}, queuetest.InfoIDs(page.Jobs), "%s", state)
			require.Equal(t, 1201, page.Examined)
		}
	})
}

// A query without a limit returns a page of 100 jobs.
func TestPageHasADefaultLimit(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		i, _ := inspect(f)
		enqueueMany(f, 101, "x")
		page, err := i.Jobs(t.Context(), delayq.Query{Topic: "topic", State: delayq.StateReady})
		require.NoError(t, err)
		require.Len(t, page.Jobs, 100)
		require.NotEmpty(t, page.Next)
		require.Equal(t, 100, page.Examined)
		require.EqualValues(t, 101, page.Total)
		require.WithinDuration(t, queuetest.ClockOf(t, f.RDB), page.At, time.Minute)
	})
}

// What a page costs: its calls, and how much they look at.
func TestCostOfPages(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		i, calls := inspect(f)
		enqueueMany(f, 4_000, "x", delayq.ProcessIn(time.Hour), delayq.Header("kind", "a"))
		enqueueMany(f, 2_500, "y", delayq.ProcessIn(time.Hour), delayq.Header("kind", strings.Repeat("b", 2000)))
		for _, c := range []struct {
			name     string
			q        delayq.Query
			examined int
			calls    queuetest.CountScripts
		}{
			{"a page", delayq.Query{}, 100, queuetest.CountScripts{"page": 1}},
			{"a large page", delayq.Query{Limit: 1000}, 1000, queuetest.CountScripts{"page": 1}},
			{"long headers", delayq.Query{Limit: 10, Latest: true}, 10, queuetest.CountScripts{"page": 1, "get": 1}},
			{"a filter", delayq.Query{Headers: map[string]string{"kind": "c"}, Budget: 4000}, 4000, queuetest.CountScripts{"page": 4}},
			{"a filter of records of 2 KiB", delayq.Query{Headers: map[string]string{"kind": "c"}, Latest: true, Budget: 1000}, 1000, queuetest.CountScripts{"page": 2}},
			{"a budget", delayq.Query{IDPrefix: "z", Budget: 1500}, 1500, queuetest.CountScripts{"page": 2}},
			{"a budget below the limit", delayq.Query{Limit: 100, Budget: 30}, 30, queuetest.CountScripts{"page": 1}},
			{"enough", delayq.Query{IDPrefix: "x"}, 100, queuetest.CountScripts{"page": 1}},
		} {
			clear(calls)
			c.q.Topic, c.q.State = "topic", delayq.StateScheduled
			page, err := i.Jobs(t.Context(), c.q)
			require.NoError(t, err, c.name)
			require.Equal(t, c.examined, page.Examined, c.name)
			require.Equal(t, c.calls, calls, c.name)
			for _, info := range page.Jobs {
				require.Len(t, info.Headers, 1, c.name)
				require.NoError(t, info.Undecodable, c.name)
			}
		}
	})
}

// Payloads never travel with a page. The record of a large job is not even read.
func TestPagesReadNoLargeRecords(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		i, calls := inspect(f)
		const jobs = 6
		due := time.Now().Add(time.Hour) // a delay would count from an estimate of Redis's clock
		for n := range jobs {
			payload := make([]byte, 300<<10)
			copy(payload[200<<10:], fmt.Sprint("needle ", n))
			_, err := f.Client.Enqueue(t.Context(), "topic", fmt.Sprint(n), payload, delayq.ProcessAt(due.Add(time.Duration(n)*time.Second)), delayq.Header("n", fmt.Sprint(n)))
			require.NoError(t, err)
		}
		list := lastPage(t, i, delayq.Query{State: delayq.StateScheduled})
		require.Len(t, list, jobs)
		require.Equal(t, queuetest.CountScripts{"page": 1}, calls)
		for n, info := range list {
			require.True(t, info.Partial)
			require.Nil(t, info.Payload)
			require.Equal(t, fmt.Sprint(n), info.ID)
			require.Equal(t, delayq.StateScheduled, info.State)
			require.Equal(t, f.Get(info.ID).Due, info.Due)
			require.InDelta(t, 300<<10, info.PayloadSize, 200)
			require.NoError(t, info.Undecodable)
			require.Nil(t, info.Headers)
			require.ErrorIs(t, queuetest.ErrOf(f.Client.Enqueue(t.Context(), "other", "", nil, info.Options()...)), delayq.ErrInvalid)
		}
		for name, q := range map[string]delayq.Query{
			"header":  {Headers: map[string]string{"n": "3"}},
			"payload": {Payload: []byte("needle 3")},
		} {
			clear(calls)
			q.State = delayq.StateScheduled
			list := lastPage(t, i, q)
			require.Len(t, list, 1, name)
			require.Equal(t, map[string]string{"n": "3"}, list[0].Headers)
			require.False(t, list[0].Partial)
			require.Nil(t, list[0].Payload)
			require.Equal(t, 300<<10, list[0].PayloadSize)
			require.Equal(t, queuetest.CountScripts{"page": 2}, calls, "three of them are nearly a mebibyte")
		}
	})
}

// A job that a filter admits is found, and no other.
func TestFilters(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		i, _ := inspect(f)
		ctx := t.Context()
		random := rand.New(rand.NewPCG(1, 2))
		pick := func(list ...string) string { return list[random.IntN(len(list))] }
		start := time.UnixMilli(1_999_999_000_000)
		for n := range 400 {
			id := pick("a", "b", "a-") + fmt.Sprint(n)
			opts := []delayq.JobOption{delayq.Header("kind", pick("x", "y", "xy")), delayq.Header("to", pick("x", "z"))}
			if n%2 == 0 {
				opts = append(opts, delayq.ProcessAt(start.Add(time.Duration(random.IntN(10))*time.Second)))
			}
			_, err := f.Client.Enqueue(ctx, "topic", id, []byte(pick("pay", "load", "payload")), opts...)
			require.NoError(t, err)
			state := []string{"", "bucket", "leases", "dead"}[n%4]
			if n%4 > 1 {
				require.NoError(t, f.RDB.LRem(ctx, f.Key("ready"), 1, id).Err())
				require.NoError(t, f.RDB.ZRem(ctx, f.Key("bucket"), id).Err())
				require.NoError(t, f.RDB.ZAdd(ctx, f.Key(state), queuetest.ZMember(id, start.Add(time.Duration(random.IntN(10))*time.Second))).Err())
			}
			if n%3 == 0 {
				message := pick("dial tcp: refused", "no row "+id, `<"quoted">`)
				require.NoError(t, f.RDB.HSet(ctx, f.Key("attempts"), id, random.IntN(4)).Err())
				require.NoError(t, f.RDB.HSet(ctx, f.Key("errors"), id, errorLog(t, pick("first", "dial tcp: refused"))+errorLog(t, message)).Err())
			}
		}
		states := []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead}
		all := make(map[delayq.State][]*delayq.JobInfo)
		for _, state := range states {
			for info, err := range i.All(ctx, delayq.Query{Topic: "topic", State: state, Limit: 7}) {
				require.NoError(t, err)
				all[state] = append(all[state], f.Get(info.ID))
			}
		}
		last := func(info *delayq.JobInfo) string {
			if len(info.Errors) == 0 {
				return ""
			}
			return info.Errors[len(info.Errors)-1].Message
		}
		for name, filter := range map[string]struct {
			set   func(q *delayq.Query)
			admit func(info *delayq.JobInfo) bool
		}{
			"IDPrefix":   {func(q *delayq.Query) { q.IDPrefix = "a-" }, func(info *delayq.JobInfo) bool { return info.ID[:2] == "a-" }},
			"MinAttempt": {func(q *delayq.Query) { q.MinAttempt = 3 }, func(info *delayq.JobInfo) bool { return info.Attempt >= 3 }},
			"Headers": {
				func(q *delayq.Query) { q.Headers = map[string]string{"kind": "x", "to": "z"} },
				func(info *delayq.JobInfo) bool { return info.Headers["kind"] == "x" && info.Headers["to"] == "z" },
			},
			"Error": {
				func(q *delayq.Query) { q.Error = "refused" },
				func(info *delayq.JobInfo) bool { return strings.Contains(last(info), "refused") },
			},
			"Error with signs": {
				func(q *delayq.Query) { q.Error = `<"q` },
				func(info *delayq.JobInfo) bool { return strings.Contains(last(info), `<"q`) },
			},
			"Payload": {
				func(q *delayq.Query) { q.Payload = []byte("ayl") },
				func(info *delayq.JobInfo) bool { return string(info.Payload) == "payload" },
			},
			"Payload that is a header": {
				func(q *delayq.Query) { q.Payload = []byte("kind") }, func(*delayq.JobInfo) bool { return false },
			},
			"all of them": {
				func(q *delayq.Query) {
					q.IDPrefix, q.MinAttempt, q.Error, q.Payload, q.Headers = "a", 2, "r", []byte("pay"), map[string]string{"to": "x"}
				},
				func(info *delayq.JobInfo) bool {
					return info.ID[0] == 'a' && info.Attempt >= 2 && strings.Contains(last(info), "r") && string(info.Payload[:3]) == "pay" && info.Headers["to"] == "x"
				},
			},
			"From and To": {
				func(q *delayq.Query) { q.From, q.To = start.Add(2*time.Second), start.Add(6*time.Second) },
				func(info *delayq.JobInfo) bool {
					at := info.Due
					if info.State == delayq.StateDead {
						at = info.BuriedAt
					}
					return !at.Before(start.Add(2*time.Second)) && at.Before(start.Add(6*time.Second))
				},
			},
		} {
			found := 0
			for _, state := range states {
				q := delayq.Query{Topic: "topic", State: state, Limit: 1 + random.IntN(50), Budget: 1 + random.IntN(100), Latest: random.IntN(2) == 0}
				filter.set(&q)
				var want []string
				for _, info := range all[state] {
					if filter.admit(info) {
						want = append(want, info.ID)
					}
				}
				if q.Latest {
					slices.Reverse(want)
				}
				require.Equal(t, want, allOf(t, i, q), "%s of %s", name, state)
				q.Budget = 1000
				n, exact, err := i.Count(ctx, q)
				require.NoError(t, err)
				require.True(t, exact)
				require.EqualValues(t, len(want), n, "%s of %s", name, state)
				found += len(want)
			}
			require.Equal(t, name != "Payload that is a header", found > 0, name)
		}
	})
}

// errorLog returns an error log of one entry.
func errorLog(t *testing.T, message string) string {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"attempt": 1, "at": 1_999_999_000_000, "kind": "error", "type": "*errors.errorString", "message": message})
	require.NoError(t, err)
	return fmt.Sprintf("%d:%s", len(raw), raw)
}

// Count asks the index if there is one, and otherwise looks at no more than the budget.
func TestCount(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		i, calls := inspect(f)
		start := time.UnixMilli(1_999_999_000_000)
		for n := range 3 {
			enqueueMany(f, 1000, fmt.Sprint("x", n, "-"), delayq.ProcessAt(start.Add(time.Duration(n)*time.Second)))
		}
		enqueueMany(f, 20, "ready")
		_, err := f.RDB.ZAdd(t.Context(), f.Key("leases"), queuetest.ZMember("ready1", start), redis.Z{Score: 1e15, Member: strings.Repeat("-", 1025)}).Result()
		require.NoError(t, err)
		for _, c := range []struct {
			q     delayq.Query
			n     int64
			exact bool
			calls int
		}{
			{delayq.Query{State: delayq.StateScheduled}, 3000, true, 1},
			{delayq.Query{State: delayq.StateScheduled, From: start.Add(time.Second)}, 2000, true, 1},
			{delayq.Query{State: delayq.StateScheduled, From: start.Add(time.Millisecond), To: start.Add(2 * time.Second)}, 1000, true, 1},
			{delayq.Query{State: delayq.StateReady}, 19, true, 1},
			{delayq.Query{State: delayq.StateRunning}, 1, true, 1},
			{delayq.Query{State: delayq.StateDead}, 0, true, 1},
			{delayq.Query{State: delayq.StateDone}, 0, true, 1},
			{delayq.Query{State: delayq.StateScheduled, IDPrefix: "x2", Budget: 2500}, 500, false, 3},
			{delayq.Query{State: delayq.StateScheduled, IDPrefix: "x2"}, 1000, true, 3},
			{delayq.Query{State: delayq.StateScheduled, IDPrefix: "x1", To: start.Add(time.Second)}, 0, true, 1},
		} {
			clear(calls)
			c.q.Topic = "topic"
			n, exact, err := i.Count(t.Context(), c.q)
			require.NoError(t, err)
			require.Equal(t, c.n, n, "%+v", c.q)
			require.Equal(t, c.exact, exact, "%+v", c.q)
			require.Equal(t, queuetest.CountScripts{"page": c.calls}, calls, "%+v", c.q)
		}
	})
}

// A cursor works in another process, and for another size of page; with another query, or damaged,
// it is refused.
func TestCursors(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		i, calls := inspect(f)
		enqueueMany(f, 30, "x", delayq.ProcessIn(time.Hour))
		q := delayq.Query{
			Topic: "topic", State: delayq.StateScheduled, IDPrefix: "x", MinAttempt: 1, Headers: map[string]string{}, Limit: 10,
			From: time.UnixMilli(1_000_000_000_000),
		}
		page, err := i.Jobs(t.Context(), q)
		require.NoError(t, err)
		q.Cursor = page.Next
		require.Regexp(t, `^[A-Za-z0-9_-]+$`, q.Cursor)
		other, _ := inspect(f)
		q.Limit, q.Budget = 1000, 500
		page, err = other.Jobs(t.Context(), q)
		require.NoError(t, err)
		require.Len(t, page.Jobs, 20)
		require.Empty(t, page.Next)

		clear(calls)
		refused := func(q delayq.Query, why string) {
			t.Helper()
			_, err := i.Jobs(t.Context(), q)
			require.ErrorIs(t, err, delayq.ErrCursor)
			require.ErrorIs(t, err, delayq.ErrInvalid)
			require.ErrorContains(t, err, `jobs topic "`+q.Topic+`": delayq: invalid cursor: `+why)
			for info, err := range i.All(t.Context(), q) {
				require.Nil(t, info)
				require.ErrorIs(t, err, delayq.ErrCursor)
			}
		}
		for _, change := range []func(q *delayq.Query){
			func(q *delayq.Query) { q.Topic = "topics" },
			func(q *delayq.Query) { q.State = delayq.StateDead },
			func(q *delayq.Query) { q.From = time.Time{} },
			func(q *delayq.Query) { q.To = time.UnixMilli(9_000_000_000_000) },
			func(q *delayq.Query) { q.Latest = true },
			func(q *delayq.Query) { q.IDPrefix = "" },
			func(q *delayq.Query) { q.MinAttempt = 2 },
			func(q *delayq.Query) { q.Headers = map[string]string{"a": "b"} },
			func(q *delayq.Query) { q.Error = "x" },
			func(q *delayq.Query) { q.Failure = "0123456789ab" },
			func(q *delayq.Query) { q.Payload = []byte("x") },
		} {
			changed := q
			change(&changed)
			refused(changed, "it is of another query; only Limit and Budget can change")
		}
		for n := range q.Cursor {
			for _, damaged := range []delayq.Cursor{q.Cursor[:n], q.Cursor[:n] + q.Cursor[n+1:], q.Cursor[:n] + "_" + q.Cursor[n+1:], q.Cursor[:n] + "!" + q.Cursor[n+1:]} {
				if damaged != "" && damaged != q.Cursor {
					q := q
					q.Cursor = damaged
					refused(q, "it is damaged; only Next of a Page is allowed")
				}
			}
		}
		require.Empty(t, calls, "Redis was not asked")
	})
}

// (G2)
func TestInvalidQueries(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		i, calls := inspect(f)
		long, now := strings.Repeat("x", 20_000), time.Now()
		ready := delayq.Query{Topic: "topic", State: delayq.StateReady}
		for name, c := range map[string]struct {
			change func(q *delayq.Query)
			parts  []string
		}{
			"state":      {func(q *delayq.Query) { q.State = "asleep" }, []string{`state "asleep": must be scheduled, ready, running, dead or done`}},
			"no state":   {func(q *delayq.Query) { q.State = "" }, []string{`state ""`}},
			"no topic":   {func(q *delayq.Query) { q.Topic = "" }, []string{"empty topic"}},
			"bad topic":  {func(q *delayq.Query) { q.Topic = "a{b" }, []string{`topic "a{b"`}},
			"limit":      {func(q *delayq.Query) { q.Limit = 1001 }, []string{"limit 1001: must be from 1 to 1000"}},
			"limit -1":   {func(q *delayq.Query) { q.Limit = -1 }, []string{"limit -1: must be from 1 to 1000"}},
			"budget":     {func(q *delayq.Query) { q.Budget = 50_001 }, []string{"budget 50001: must be from 1 to 50000"}},
			"budget -1":  {func(q *delayq.Query) { q.Budget = -1 }, []string{"budget -1"}},
			"range":      {func(q *delayq.Query) { q.From, q.To = now, now.Add(-1) }, []string{"From(", "must be before To("}},
			"no range":   {func(q *delayq.Query) { q.From, q.To = now, now }, []string{"must be before To("}},
			"from":       {func(q *delayq.Query) { q.From = time.UnixMilli(-1) }, []string{"From(", "must be from 1970"}},
			"to":         {func(q *delayq.Query) { q.To = time.UnixMilli(1e14) }, []string{"To(", "must be from 1970"}},
			"attempt":    {func(q *delayq.Query) { q.MinAttempt = -1 }, []string{"min attempt -1: must be at least 0"}},
			"prefix":     {func(q *delayq.Query) { q.IDPrefix = long }, []string{"ID prefix of 20000 bytes, at most 1024 are allowed"}},
			"error":      {func(q *delayq.Query) { q.Error = long }, []string{"error of 20000 bytes, at most 1024 are allowed"}},
			"payload":    {func(q *delayq.Query) { q.Payload = []byte(long) }, []string{"payload of 20000 bytes, at most 1024 are allowed"}},
			"headers":    {func(q *delayq.Query) { q.Headers = map[string]string{"a": long} }, []string{"headers of 20001 bytes, at most 16384 are allowed"}},
			"failure":    {func(q *delayq.Query) { q.Failure = "dial tcp" }, []string{`failure "dial tcp": must be the Key of a FailureGroup, 12 hexadecimal digits`}},
			"done":       {func(q *delayq.Query) { q.State, q.Error = delayq.StateDone, "x" }, []string{"done jobs have no errors"}},
			"everything": {func(q *delayq.Query) { q.Topic, q.State, q.Limit, q.Budget = "", "", -1, -1 }, []string{"empty topic", "state", "limit", "budget"}},
		} {
			q := ready
			c.change(&q)
			_, err := i.Jobs(t.Context(), q)
			_, _, countErr := i.Count(t.Context(), q)
			errs := map[string]error{name: err, name + ", count": countErr}
			for _, err := range i.All(t.Context(), q) {
				errs[name+", all"] = err
			}
			if name == "limit" || name == "limit -1" {
				require.NoError(t, countErr, "Count ignores it")
				delete(errs, name+", count")
			} else if name == "everything" {
				delete(errs, name+", count")
			}
			requireInvalid(t, errs, c.parts...)
		}
		clear(calls)
		for name, err := range map[string]error{
			"budget -1":      queuetest.ErrOf(i.Failures(t.Context(), "topic", delayq.StateDead, -1)),
			"budget 50001":   queuetest.ErrOf(i.Failures(t.Context(), "topic", delayq.StateDead, 50_001)),
			"empty topic":    queuetest.ErrOf(i.Failures(t.Context(), "", delayq.StateDead, 0)),
			`state "asleep"`: queuetest.ErrOf(i.Failures(t.Context(), "topic", "asleep", 0)),
			`state "done"`:   queuetest.ErrOf(i.Failures(t.Context(), "topic", delayq.StateDone, 0)),
		} {
			requireInvalid(t, map[string]error{name: err}, name, "failures")
		}
		require.Empty(t, calls)
		requireNothing(f)
	})
}

// Pages have their order, and From and To cut it out of an index.
func TestPagesInTheirOrder(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		i, _ := inspect(f)
		start := time.UnixMilli(1_999_999_000_000)
		for n, id := range []string{"c", "a", "e", "b", "d"} {
			f.Enqueue(id, delayq.ProcessAt(start.Add(time.Duration(n)*time.Minute)))
		}
		list := func(q delayq.Query) string {
			t.Helper()
			q.State = delayq.StateScheduled
			return strings.Join(queuetest.InfoIDs(lastPage(t, i, q)), "")
		}
		require.Equal(t, "caebd", list(delayq.Query{}))
		require.Equal(t, "dbeac", list(delayq.Query{Latest: true}))
		require.Equal(t, "aeb", list(delayq.Query{From: start.Add(time.Minute), To: start.Add(4 * time.Minute)}))
		require.Equal(t, "bea", list(delayq.Query{From: start.Add(time.Minute), To: start.Add(4 * time.Minute), Latest: true}))
		require.Equal(t, "d", list(delayq.Query{From: start.Add(4 * time.Minute)}))
		require.Equal(t, "d", list(delayq.Query{From: start.Add(3*time.Minute + time.Nanosecond)}))
		require.Empty(t, list(delayq.Query{From: start.Add(5 * time.Minute)}))
		require.Empty(t, list(delayq.Query{To: start}))
		page, err := i.Jobs(t.Context(), delayq.Query{Topic: "topic", State: delayq.StateScheduled, From: start.Add(time.Minute), Limit: 1})
		require.NoError(t, err)
		require.EqualValues(t, 4, page.Total)
	})
}

// The groups of Failures are the jobs that Query.Failure lists.
func TestFailures(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		i, calls := inspect(f)
		ctx := t.Context()
		enqueueMany(f, 60, "order-", delayq.ProcessIn(time.Hour))
		add := func(n int, message string, at int64) {
			id := fmt.Sprint("order-", n)
			raw, err := json.Marshal(map[string]any{"attempt": 1, "at": at, "kind": "error", "type": "*net.OpError", "message": message})
			require.NoError(t, err)
			require.NoError(t, f.RDB.HSet(ctx, f.Key("errors"), id, errorLog(t, "an earlier error")+fmt.Sprintf("%d:%s", len(raw), raw)).Err())
			require.NoError(t, f.RDB.HSet(ctx, f.Key("attempts"), id, 1).Err())
			if n >= 10 {
				require.NoError(t, f.RDB.ZRem(ctx, f.Key("bucket"), id).Err())
				require.NoError(t, f.RDB.ZAdd(ctx, f.Key("dead"), redis.Z{Score: float64(at), Member: id}).Err())
			}
		}
		const at = 1_900_000_000_000
		for n := range 50 {
			switch {
			case n%5 == 0:
				add(n, fmt.Sprintf("no row of order-%d", n), at+int64(n))
			case n%5 < 4:
				add(n, fmt.Sprintf("dial tcp 10.0.0.%d:80: refused after %dms", n, n*7), at+int64(n))
			}
		}
		check := func(state delayq.State, budget, examined int, total int64, want string) {
			t.Helper()
			clear(calls)
			all, err := i.Failures(ctx, "topic", state, budget)
			require.NoError(t, err)
			require.Equal(t, queuetest.CountScripts{"page": 1}, calls)
			require.Equal(t, []int64{int64(examined), total}, []int64{int64(all.Examined), all.Total})
			var got strings.Builder
			for _, g := range all.Groups {
				_, _ = fmt.Fprintln(&got, g.Count, g.Sample, g.First.UnixMilli()-at, g.Last.UnixMilli()-at, g.IDs)
			}
			require.Equal(t, want, got.String())
			for _, g := range all.Groups {
				ids := allOf(t, i, delayq.Query{Topic: "topic", State: state, Failure: g.Key, Latest: state == delayq.StateDead, Limit: 3})
				if examined == int(total) {
					require.Len(t, ids, int(g.Count))
				}
				require.Equal(t, g.IDs, ids[:len(g.IDs)])
			}
		}
		check(delayq.StateDead, 0, 32, 32, `24 dial tcp 10.0.0.48:80: refused after 336ms 11 48 [order-48 order-47 order-46 order-43 order-42]
8 no row of order-45 10 45 [order-45 order-40 order-35 order-30 order-25]
`)
		check(delayq.StateDead, 3, 3, 32, `3 dial tcp 10.0.0.48:80: refused after 336ms 46 48 [order-48 order-47 order-46]
`)
		check(delayq.StateScheduled, 0, 28, 28, `6 dial tcp 10.0.0.8:80: refused after 56ms 1 8 [order-1 order-2 order-3 order-6 order-7]
2 no row of order-5 0 5 [order-0 order-5]
`)
		none, err := i.Failures(ctx, "unused", delayq.StateDead, 0)
		require.NoError(t, err)
		require.Equal(t, &delayq.Failures{}, none)
	})
}

// Pages and CancelBatch remove all wrong jobs and no other, however many there are and whatever
// cancelled ones have left behind.
func TestPagesOfJobsThatAreCancelled(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("right-0")
		enqueueMany(f, 1500, "wrong-a")
		f.Enqueue("right-1")
		enqueueMany(f, 1500, "wrong-b")
		enqueueMany(f, 1100, "wrong-later", delayq.ProcessIn(time.Hour))
		f.Enqueue("right-2", delayq.ProcessIn(2*time.Hour))
		wrong := func(job *delayq.JobInfo) bool { return strings.HasPrefix(job.ID, "wrong") }
		for _, state := range []delayq.State{delayq.StateScheduled, delayq.StateReady} {
			require.NoError(t, cancelWrong(t.Context(), f.Client, f.Inspector, "topic", state, wrong))
		}
		info := f.Stats()
		require.EqualValues(t, 2, info.Ready)
		require.EqualValues(t, 1, info.Scheduled)
		for i := range 3 {
			f.Get(fmt.Sprint("right-", i))
		}
	})
}

// cancelWrong cancels the jobs of a state for which wrong returns true, as docs/operations.md says.
func cancelWrong(
	ctx context.Context, client *delayq.Client, inspector *delayq.Inspector, topic string, state delayq.State, wrong func(*delayq.JobInfo) bool,
) error {
	q := delayq.Query{Topic: topic, State: state, Limit: 1000}
	for {
		page, err := inspector.Jobs(ctx, q)
		if err != nil {
			return err
		}
		var jobs []delayq.JobRef
		for _, job := range page.Jobs {
			if wrong(job) {
				jobs = append(jobs, delayq.JobRef{Topic: topic, ID: job.ID})
			}
		}
		results, _ := client.CancelBatch(ctx, jobs) // each result has its error
		for _, r := range results {
			if r.Err != nil && !errors.Is(r.Err, delayq.ErrNotFound) {
				return r.Err
			}
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			return nil
		}
	}
}

// A scriptHook is a function that is a ScriptHook.
type scriptHook func(delayq.ScriptEvent)

func (f scriptHook) Script(e delayq.ScriptEvent) { f(e) }

// enqueueMany stores n jobs whose IDs are name and a number from 0.
func enqueueMany(f *queuetest.Fixture, n int, name string, opts ...delayq.JobOption) {
	f.T.Helper()
	jobs := make([]delayq.NewJob, n)
	for i := range jobs {
		jobs[i] = delayq.NewJob{Topic: "topic", ID: fmt.Sprint(name, i), Options: opts}
	}
	_, err := f.Client.EnqueueBatch(f.T.Context(), jobs)
	require.NoError(f.T, err)
}

// A context that is done ends a walk with its error.
func TestPagesWithADoneContext(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		i, _ := inspect(f)
		f.Enqueue("x")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := i.Jobs(ctx, delayq.Query{Topic: "topic", State: delayq.StateReady})
		require.ErrorIs(t, err, context.Canceled)
		_, _, err = i.Count(ctx, delayq.Query{Topic: "topic", State: delayq.StateReady})
		require.ErrorIs(t, err, context.Canceled)
	})
}
