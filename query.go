package delayq

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/places"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A Query selects jobs of one topic in one state. Topic and State are required. The other fields
// narrow the selection, or set how much one call returns and looks at.
//
// From and To are about the time that goes with the state. For scheduled jobs that is their due
// time, for dead jobs the time of burial, and for done jobs the time until which they are kept.
// There an index finds the jobs. For ready and running jobs it is the time at which the run was
// due, because Redis does not hold when a run started. There From and To are filters.
//
// The fields from Key to Payload are filters. Jobs are looked at one by one until enough of
// them match or until the Budget is used up.
type Query struct {
	Topic string
	State State

	From   time.Time // the earliest time; zero: no bound
	To     time.Time // the time before which it is; zero: no bound
	Latest bool      // the opposite order: see Inspector.Jobs

	Key        string            // the key of a job: see [Key]; at most 255 bytes
	IDPrefix   string            // how IDs begin; at most 1 KiB
	MinAttempt int               // the least Attempt of a job
	Headers    map[string]string // headers that a job has, with these values; at most 16 KiB
	Error      string            // a part of the message of the last error; at most 1 KiB
	Failure    string            // Key of a FailureGroup of the last error
	Payload    []byte            // a part of the payload as it is stored; at most 1 KiB

	Limit  int    // most jobs of a page. Default: 100. Range: 1 to 1,000
	Budget int    // most jobs that a call looks at. Default: 5,000. Range: 1 to 50,000
	Cursor Cursor // Page.Next of the page before; empty: the first page

	// Offset is how many entries of the order a page without a Cursor skips: see Inspector.Jobs.
	// With a Cursor it has no effect. Default: 0. Without filters only.
	Offset int64
}

// Bounds of a Query.
const (
	defaultLimit  = 100
	maxLimit      = listJobs
	defaultBudget = 5_000
	maxBudget     = 50_000
	maxOffset     = 1 << 40
	maxNeedle     = 1 << 10 // bytes of Error and Payload
)

// queryStates lists the states that a query can select.
var queryStates = []State{StateScheduled, StateReady, StateRunning, StateDead, StateDone}

// A Page is what [Inspector.Jobs] returns.
type Page struct {
	Jobs []*JobInfo
	// Next is the Cursor of the query for the next page. It is empty at the end.
	Next Cursor
	// Examined is the number of entries that were looked at: those of the returned jobs, those of
	// jobs that do not match, and those that jobs have left behind. A page of scheduled, dead or
	// done jobs of a topic with partitions reads somewhat ahead in each of them. The next page
	// looks at these entries again, and they count again.
	Examined int
	// Total is the number of jobs in the state and, where an index finds them, from From to To. The
	// filters do not change it. With partitions it is the number in all of them.
	Total int64
	At    time.Time // when the page was read, by Redis's clock
}

// filled returns the query with its defaults, or the complaints about it.
func (q Query) filled() (Query, error) {
	var errs []error
	complain := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !slices.Contains(queryStates, q.State) {
		complain("state %q: must be scheduled, ready, running, dead or done", q.State)
	}
	for _, bound := range []struct {
		name        string
		value       *int
		usual, most int
	}{
		{"limit", &q.Limit, defaultLimit, maxLimit},
		{"budget", &q.Budget, defaultBudget, maxBudget},
	} {
		if *bound.value == 0 {
			*bound.value = bound.usual
		}
		if *bound.value < 1 || *bound.value > bound.most {
			complain("%s %d: must be from 1 to %d", bound.name, *bound.value, bound.most)
		}
	}
	for _, one := range []struct {
		name string
		at   time.Time
	}{{"From", q.From}, {"To", q.To}} {
		if _, err := instant(one.name, one.at); err != nil && !one.at.IsZero() {
			errs = append(errs, err)
		}
	}
	if !q.From.IsZero() && !q.To.IsZero() && !q.From.Before(q.To) {
		complain("From(%v): must be before To(%v)", q.From, q.To)
	}
	switch {
	case q.Offset < 0 || q.Offset > maxOffset:
		complain("offset %d: must be from 0 to %d", q.Offset, int64(maxOffset))
	case q.Offset > 0 && q.filtered():
		complain("offset %d: no index counts what a filter selects; use a cursor", q.Offset)
	}
	if q.MinAttempt < 0 {
		complain("min attempt %d: must be at least 0", q.MinAttempt)
	}
	errs = append(errs, q.tooLong()...)
	if q.Failure != "" && !record.IsFailureKey(q.Failure) {
		complain("failure %q: must be the Key of a FailureGroup, %d hexadecimal digits", q.Failure, record.FailureKeyLen)
	}
	if q.State == StateDone && (q.Error != "" || q.Failure != "") {
		complain("error and failure: done jobs have no errors; the state must be scheduled, ready, running or dead")
	}
	return q, invalid(errs)
}

// tooLong complains about texts that are longer than any that could match.
func (q Query) tooLong() (errs []error) {
	headers := 0
	for name, value := range q.Headers {
		headers += len(name) + len(value)
	}
	for _, text := range []struct {
		name       string
		size, most int
	}{
		{"key", len(q.Key), script.MaxTopicLen},
		{"ID prefix", len(q.IDPrefix), script.MaxIDLen},
		{"headers", headers, script.MaxHeaderLen},
		{"error", len(q.Error), maxNeedle},
		{"payload", len(q.Payload), maxNeedle},
	} {
		if text.size > text.most {
			errs = append(errs, fmt.Errorf("%s of %d bytes, at most %d are allowed", text.name, text.size, text.most))
		}
	}
	return errs
}

// indexed reports whether an index has the jobs by the time that From and To are about.
func (q *Query) indexed() bool {
	return q.State == StateScheduled || q.State == StateDead || q.State == StateDone
}

// byDue reports whether From and To are a filter by the due time.
func (q *Query) byDue() bool { return !q.indexed() && !(q.From.IsZero() && q.To.IsZero()) }

// filtered reports whether jobs must be looked at one by one.
func (q *Query) filtered() bool {
	return q.byDue() || q.Key != "" || q.IDPrefix != "" || q.MinAttempt > 1 || len(q.Headers) > 0 || q.failed() || len(q.Payload) > 0
}

// failed reports whether only jobs with errors match.
func (q *Query) failed() bool { return q.Error != "" || q.Failure != "" }

// reads reports whether a filter is about what only a job's record has.
func (q *Query) reads() bool {
	return q.byDue() || q.Key != "" || len(q.Headers) > 0 || len(q.Payload) > 0 || q.State == StateDone && q.MinAttempt > 1
}

// needles returns texts that the records of all matching jobs contain. A script compares them
// before it returns a record.
func (q *Query) needles() (list []any) {
	for _, name := range slices.Sorted(maps.Keys(q.Headers)) {
		list = append(list, name, q.Headers[name])
	}
	if len(q.Payload) > 0 {
		list = append(list, q.Payload)
	}
	if q.Key != "" {
		list = append(list, q.Key)
	}
	return list
}

// admits reports whether a job matches the filters.
func (q *Query) admits(info *JobInfo) bool {
	switch {
	case q.Key != "" && info.Key != q.Key, !strings.HasPrefix(info.ID, q.IDPrefix), info.Attempt < q.MinAttempt:
		return false
	case q.byDue() && (info.Due.Before(q.From) || !q.To.IsZero() && !info.Due.Before(q.To)):
		return false
	case len(q.Payload) > 0 && !bytes.Contains(info.Payload, q.Payload):
		return false
	}
	for name, value := range q.Headers {
		if has, ok := info.Headers[name]; !ok || has != value {
			return false
		}
	}
	if !q.failed() {
		return true
	}
	if len(info.Errors) == 0 {
		return false
	}
	last := &info.Errors[len(info.Errors)-1]
	return strings.Contains(last.Message, q.Error) && (q.Failure == "" || failureKey(last, info.ID) == q.Failure)
}

// Jobs returns a page of the jobs that a query selects. For the next page, set Query.Cursor to
// [Page.Next]. A page can have fewer jobs than Limit, or none, before the end: then the Budget was
// used up.
//
// The order depends on the state. Query.Latest reverses it.
//
//   - Scheduled jobs are sorted by due time.
//   - Ready jobs without a key are in the order in which servers take them. A job on its way to a
//     server may be missing. Those with a key follow, sorted by the length of the key, by the key,
//     and for each key in the order in which servers take them.
//   - Running jobs are sorted by ID, because the ends of their leases move. If there are more than
//     10,000 of them, they are in no order.
//   - Dead jobs are sorted by time of burial.
//   - Done jobs are sorted by the time until which they are kept.
//
// In a topic with partitions ([Client.Partition]), scheduled, dead and done jobs are in this order
// together, and those of the same time partition by partition. Ready and running jobs come
// partition by partition, and have this order within each: first come those of the topic itself,
// then those in the partitions of the oldest Partition call. The 10,000 running jobs below are
// those of one partition.
//
// A job that stays in its state, with its time, is on exactly one of the pages, whatever else is
// enqueued, taken, cancelled or moved between the calls. A job that arrives or leaves in the
// meantime may be on one of them. There are three exceptions. A ready job appears twice if it was
// cancelled and enqueued again while its old entry was deep in ready. The place in ready is an
// estimate if more than Budget entries of cancelled jobs have been dropped in front of it since the
// last page, or if the eight entries on each side of it have been removed by anything but a take.
// Of more than 10,000 running jobs, one can appear twice if their number falls to a tenth, and some
// can be missing if the pages are read from different replicas or a failover comes between them.
//
// Query.Offset jumps to a page by its number: page n begins at (n - 1) × Limit. It counts from the
// beginning of the order, or with Latest from its end, and from From to To only. For ready jobs it
// counts the entries of ready and of lane, so also those that cancelled jobs have left behind. The
// place holds at the time of the call. Jobs that come and go in front of it shift it, so two pages
// that were both found by Offset can have a job twice, and can leave one out. The Cursor of such a
// page keeps the promises above. An Offset behind the last entry is a page without jobs. More than
// 10,000 running jobs have no order, and an Offset there is [ErrInvalid].
//
// Pages have no payloads. The records of jobs are read up to 16 KiB, and no further than to the
// payload. Of a larger record only the size is read, unless Headers, Payload, or From and To of
// ready and running jobs need it: see [JobInfo.Partial]. [Inspector.Job] and [Client.Get] read the
// whole job.
//
// Errors: [ErrInvalid], [ErrCursor], the error of the context, or that of Redis. The error of Redis
// loses the jobs of the page; the query can be repeated with the same cursor.
//
// Cost: without a filter, one call to Redis, of O(log² n + Limit); of ready O(n / 100) more, which
// are 0.1 ms for a million jobs. An Offset costs no more than a Cursor. Jobs with more than 1 KiB
// of headers cost further calls. Each call looks at up to 1,000 entries and reads about 1 MiB of
// records and errors, or one job. Finding the place in ready again takes a look at 1,025 more IDs.
// With filters there are at least Budget / 1,000 calls, if few jobs match, and one call for each
// MiB of records. Running jobs cost one more call for each 1,000 of them. In a topic with
// partitions there are at least two round trips, with a call for each partition, and a call looks
// at one or more entries of each, even beyond Budget.
func (i *Inspector) Jobs(ctx context.Context, q Query) (*Page, error) {
	return i.jobs(ctx, q, false)
}

// jobs reads a page. brief: its jobs have only what says where they are, if that spares reading
// their records.
func (i *Inspector) jobs(ctx context.Context, q Query, brief bool) (*Page, error) {
	l, err := i.newListing(ctx, q, brief)
	var page *Page
	if err == nil {
		page, err = l.fill(ctx)
	}
	if err != nil {
		return nil, script.Place{Call: "jobs", Topic: q.Topic}.At(err)
	}
	if l.Page.Next != nil {
		page.Next = Cursor(places.EncodeCursor(l.q.id(i.o.prefix), l.Page.Next))
	}
	return page, nil
}

// All returns an iterator over all jobs that a query selects, from Query.Cursor on. It reads them
// page by page, as [Inspector.Jobs] does with the same promises and costs. Limit is the size of its
// pages. All ends at the first error, which is the last value it yields.
func (i *Inspector) All(ctx context.Context, q Query) iter.Seq2[*JobInfo, error] {
	return func(yield func(*JobInfo, error) bool) {
		seen := make(map[string]bool) // of running jobs: there are not many, and IDs are those of a key
		for q := q; ; {
			page, err := i.Jobs(ctx, q)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, info := range page.Jobs {
				if which := info.Key + "\x00" + info.ID; q.State == StateRunning {
					if seen[which] {
						continue
					}
					seen[which] = true
				}
				if !yield(info, nil) {
					return
				}
			}
			if q.Cursor = page.Next; q.Cursor == "" {
				return
			}
		}
	}
}

// Count returns the number of jobs that a query selects. It ignores Limit, Offset and Cursor. If
// exact is false, the Budget ended the count, and there may be more.
//
// Without filters, Redis knows the number, and a call of O(log n) returns it. It then counts an ID
// that Redis lost the record of too. With filters, Count looks at the jobs as [Inspector.Jobs]
// does, at the same cost.
func (i *Inspector) Count(ctx context.Context, q Query) (n int64, exact bool, err error) {
	q.Limit, q.Offset, q.Cursor = maxLimit, 0, ""
	l, err := i.newListing(ctx, q, false)
	if err == nil && !l.q.filtered() {
		if n, err = l.Count(ctx); err == nil {
			return n, true, nil
		}
	}
	for err == nil && !l.Ended && l.Page.Examined < l.q.Budget {
		if err = l.said(l.Step(ctx)); err == nil {
			n += int64(len(l.Page.Jobs))
			l.Page.Jobs = nil
		}
	}
	if err != nil {
		return 0, false, script.Place{Call: "count", Topic: q.Topic}.At(err)
	}
	return n, l.Ended, nil
}

// scoreBound returns a time as a bound of scores, or none for the zero time.
func scoreBound(t time.Time, none string) string {
	ms, ok := record.Millis(t)
	if t.IsZero() || !ok {
		return none
	}
	return fmt.Sprint(ms)
}

// A Cursor is a place in the jobs that a [Query] selects: see [Page.Next]. It is text of letters,
// digits, - and _, and remains valid as long as the queue exists, also in other processes. Its
// content is for delayq only. It holds the IDs of some jobs. It belongs to its query: with another
// topic, state, order or filter it is refused with [ErrCursor]. Limit and Budget can change.
type Cursor string

// id identifies the query: everything that decides which jobs it finds, and in which order.
func (q *Query) id(prefix string) (id places.QueryID) {
	latest := ""
	if q.Latest {
		latest = "latest"
	}
	words := []string{
		script.NewKeys(prefix, q.Topic).Root, string(q.State), scoreBound(q.From, "-inf"), scoreBound(q.To, "+inf"), latest,
		q.IDPrefix, fmt.Sprint(q.MinAttempt), q.Error, q.Failure, string(q.Payload),
	}
	for _, name := range slices.Sorted(maps.Keys(q.Headers)) {
		words = append(words, name, q.Headers[name])
	}
	if q.Key != "" { // the cursors of a query without one are those of the release before
		words = append(words, "key "+q.Key)
	}
	sum := sha256.Sum256(places.AppendWords(nil, words))
	copy(id[:], sum[:])
	return id
}

// decode returns the place of a cursor of a query.
func (c Cursor) decode(id places.QueryID) ([]string, error) {
	place, wrong := places.DecodeCursor(string(c), id)
	if wrong != "" {
		return nil, fmt.Errorf("%w: %s", ErrCursor, wrong)
	}
	return place, nil
}
