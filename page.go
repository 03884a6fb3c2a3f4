// How jobs are read from all places of a topic: from the topic itself, and from its partitions. The
// order is in internal/places, and the reading in lua/page.lua.

package delayq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/doctor"
	"github.com/delayq/delayq/internal/explain"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/places"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

const (
	listJobs = 1000 // the most entries that one call looks at

	// recordHead is at least the length of a record up to its payload: msgpack at most triples the
	// bytes of short headers.
	recordHead = 3 * record.MaxHeaders

	pageRecord = 16 << 10 // bytes of the largest record that a page reads
	pageHead   = 1 << 10  // bytes of each record that a page returns first
	anyRecord  = 1 << 30  // more than any record has
)

// A listing reads the jobs of a query, call by call: those of its topic, and of its partitions. The
// reading itself is in internal/places.
type listing struct {
	*places.Listing[*JobInfo]
	q *Query // valid, with its defaults
}

// newListing validates a query and returns a listing that begins at its cursor. brief: its jobs
// have only what says where they are, if no filter needs more and entries without a record are
// rare.
func (i *Inspector) newListing(ctx context.Context, q Query, brief bool) (*listing, error) {
	filled, err := q.filled()
	if err = errors.Join(i.validate(ctx, q.Topic, ""), err); err != nil {
		return nil, err
	}
	look := filled.look()
	if id := filled.id(i.o.prefix); q.Cursor != "" {
		if look.Place, err = q.Cursor.decode(id); err != nil {
			return nil, err
		}
	}
	plain := filled
	plain.IDPrefix = "" // the script compares it
	if brief = brief && plain.indexed() && !plain.filtered(); brief {
		look.Largest = -1
	}
	reader := &places.Reader[*JobInfo]{
		Scripts: i.scripts, Prefix: i.o.prefix,
		Admits: func(info *JobInfo) bool {
			fits := filled.admits(info)
			info.Payload = nil
			return fits
		},
		Scan: func(ctx context.Context, key string, read func(script.Caller) error) error {
			return i.scan(ctx, key, func(one *Inspector) error { return read(one.scripts) })
		},
		Jobs: func(ctx context.Context, k *script.Keys, ids []string) (map[string]*JobInfo, error) {
			return i.whole(ctx, k, filled.State, ids)
		},
		Job: func(k *script.Keys, row places.Row) (info *JobInfo, is, whole bool) {
			if brief {
				info, whole = filled.located(k, row), true
			} else {
				info, whole = filled.described(k, row, look.Cut)
			}
			return info, info != nil, whole
		},
	}
	return &listing{places.NewListing(reader, look), &filled}, nil
}

// look returns what the calls of a query look for.
func (q *Query) look() *places.Query {
	look := &places.Query{
		Topic: q.Topic, State: string(q.State), From: scoreBound(q.From, "-inf"), To: scoreBound(q.To, "+inf"), Latest: q.Latest,
		IDPrefix: q.IDPrefix, Key: q.Key, MinAttempt: q.MinAttempt, Failed: q.failed(), Needles: q.needles(), Filtered: q.filtered(),
		Limit: q.Limit, Budget: q.Budget, Offset: q.Offset, Largest: pageRecord, Cut: pageHead,
	}
	if q.reads() {
		look.Largest = anyRecord
	}
	switch {
	case len(q.Payload) > 0:
		look.Cut = -1
	case len(q.Headers) > 0:
		look.Cut = recordHead // few records have them, so there is no need for a second call
	}
	return look
}

// fill reads a page.
func (l *listing) fill(ctx context.Context) (*Page, error) {
	if err := l.said(l.Fill(ctx)); err != nil {
		return nil, err
	}
	return l.page(), nil
}

// page returns what has been read.
func (l *listing) page() *Page {
	return &Page{Jobs: l.Page.Jobs, Examined: l.Page.Examined, Total: l.Page.Total, At: orZero(l.Page.At)}
}

// said returns an error of the reading as the calls of an inspector do.
func (l *listing) said(err error) error {
	var refused *places.Refusal
	switch {
	case !errors.As(err, &refused):
		return err
	case refused.Cursor:
		return fmt.Errorf("%w: %w", ErrCursor, err)
	}
	return invalid([]error{err})
}

// whole returns the jobs of a place that are in a state, by their IDs, although their records are
// long.
func (i *Inspector) whole(ctx context.Context, k *script.Keys, s State, ids []string) (map[string]*JobInfo, error) {
	list, err := jobInfos(ctx, i.scripts, k, recordHead, ids)
	if err != nil {
		return nil, err
	}
	known := make(map[string]*JobInfo, len(list))
	for _, info := range list {
		if info.State == s { // it may have moved on
			known[info.ID] = info
		}
	}
	return known, nil
}

// newJobInfo returns the JobInfo of a job of a topic or a partition.
func newJobInfo(place, id string) *JobInfo {
	topic, parted := part.IsName(place)
	info := &JobInfo{Job: Job{Topic: topic, ID: id}}
	if parted {
		info.place = place
	}
	return info
}

// column returns what a row has in the place of a column of get.lua. value is the record, or what
// is kept of a done job.
func (q *Query) column(row places.Row, value string) func(column int) string {
	return func(column int) string {
		switch state := q.State; {
		case column == script.ColumnRecord && state != StateDone, column == script.ColumnResult && state == StateDone:
			return value
		case column == script.ColumnAttempts:
			return row.Text(places.ColumnTries)
		case column == script.ColumnErrors:
			return row.Text(places.ColumnLog)
		case column == script.ColumnMoved:
			return row.Text(places.ColumnMove)
		case column == script.ColumnPlace:
			return row.Text(places.ColumnPlace)
		case column == script.ColumnNote:
			return row.Text(places.ColumnNote)
		case column == script.ColumnBucket && state == StateScheduled, column == script.ColumnLease && state == StateRunning,
			column == script.ColumnDead && state == StateDead, column == script.ColumnDone && state == StateDone:
			return row.Text(places.ColumnScore)
		}
		return ""
	}
}

// located returns only where the job of a row is.
func (q *Query) located(k *script.Keys, row places.Row) *JobInfo {
	info := newJobInfo(k.Topic, row.ID())
	info.Attempt, info.State = 1, q.State // no MinAttempt above 1 is set
	info.placed(0, q.column(row, ""))
	if info.State == StateDone {
		info.KeptUntil = scoreTime(row.Text(places.ColumnScore))
	}
	return info
}

// described returns what a row says about a job, and nil if there is none. whole is false if the
// record was cut before its payload.
func (q *Query) described(k *script.Keys, row places.Row, cut int) (info *JobInfo, whole bool) {
	value := row.Text(places.ColumnValue)
	partial := value == ""
	if partial {
		value = "-" // a record that cannot be read
	}
	info = readJobInfo(k.Topic, row.ID(), cut, q.column(row, value))
	switch {
	case info == nil:
		return nil, true
	case partial:
		info.Partial, info.PayloadSize, info.Undecodable, info.Raw = true, int(row.Size()), nil, nil
		info.seen = seen{}
	case info.Undecodable != nil && int64(len(value)) < row.Size():
		return nil, false
	default:
		info.seen.bytes = int(row.Size())
	}
	return info, true
}

// elsewhere is the number of the value of get.lua that says that the topic is closed.
const elsewhere = 13

// job looks a job up in its topic, and in the partitions of that if it is closed. A done job that
// is kept does not have its ID any more: it counts only if none is unfinished, and the latest one
// does.
func (i *Inspector) job(ctx context.Context, home *script.Keys, id string) (*JobInfo, error) {
	r, err := script.LookUp(ctx, i.scripts, home, script.CallBytes, -1, []string{id})
	if err != nil {
		return nil, err
	}
	read := func(k *script.Keys, r script.Reply) *JobInfo {
		return readJobInfo(k.Topic, id, -1, func(column int) string { return r.List(2 + column).Text(0) })
	}
	found := read(home, r)
	switch {
	case r.Number(elsewhere) != 0:
	case found == nil:
		return nil, ErrNotFound
	default:
		return found, nil
	}
	m, err := places.ReadMap(ctx, i.scripts, home)
	if err != nil {
		return nil, err
	}
	keys := places.OfJob(i.o.prefix, home.Topic, m, id)
	replies, err := places.Call(ctx, i.scripts, commit.Get.Script, keys, 1, script.CallBytes, -1, id)
	for n, r := range replies {
		if info := read(keys[n], r); info != nil {
			if found = info; info.State != StateDone {
				return info, nil
			}
		}
	}
	if err != nil || found == nil {
		return nil, cmp.Or(err, ErrNotFound)
	}
	return found, nil
}

// examine checks all places of a topic, and its partitions as a whole.
func (i *Inspector) examine(
	ctx context.Context, topic string, check func(k *script.Keys) (*doctor.Report, error),
	mend func(ctx context.Context, k *script.Keys, keysStay bool) error,
) (all *doctor.Report, err error) {
	all = &doctor.Report{Found: make(map[string]int)}
	home := script.NewKeys(i.o.prefix, topic)
	m, err := places.ReadMap(ctx, i.scripts, home)
	if err != nil {
		return all, err
	}
	keys := places.All(i.o.prefix, topic, m)
	if len(m) > 0 {
		servers, err := i.Servers(ctx)
		if err != nil {
			return all, err
		}
		served := slices.ContainsFunc(servers, func(s ServerInfo) bool { _, does := s.Topics[topic]; return does })
		parts := doctor.Parts{Topic: topic, Map: m, Keys: keys, Close: mend, Send: func(ctx context.Context, cmds []redis.Cmder) {
			i.scripts.Send(ctx, nil, cmds)
		}}
		whole, err := parts.Check(ctx, served, func(found func(id string)) error { return i.straysAtHome(ctx, topic, m, found) })
		if all.Add("", whole); err != nil {
			return all, err
		}
	}
	for _, k := range keys {
		one, err := check(k)
		if one != nil {
			all.Add(k.Topic, one)
		}
		if err != nil {
			return all, places.In(k, err)
		}
	}
	return all, nil
}

// straysAtHome finds the unfinished jobs in a topic itself that no schedule has made, if its map no
// longer has them.
func (i *Inspector) straysAtHome(ctx context.Context, topic string, m part.Map, found func(id string)) error {
	if m[0].Number == part.Home {
		return nil
	}
	for _, state := range queryStates {
		if state == StateDone {
			continue
		}
		l, err := i.newListing(ctx, Query{Topic: topic, State: state, Limit: maxLimit}, false)
		for err == nil && !l.Ended {
			if err = l.said(l.StepAtHome(ctx)); err == nil {
				for _, info := range l.Page.Jobs {
					if _, slot := record.DecodeSlotID(info.ID); info.Schedule == "" && !(info.Partial && slot) {
						found(info.ID)
					}
				}
				l.Page.Jobs = nil
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// placed reads the replies of the explain script: that of the topic itself, and if it has
// partitions that of the one that has the job.
func (i *Inspector) placed(ctx context.Context, home *script.Keys, id string, r script.Reply, asked places.Asked) (*circumstances, error) {
	m, err := asked.Map(ctx, i.scripts)
	c := readCircumstances(home.Topic, id, r)
	if err != nil || len(m) == 0 {
		return c, err
	}
	keys := places.OfJob(i.o.prefix, home.Topic, m, id)
	calls := make([]*script.Call, len(keys))
	for n, k := range keys {
		calls[n] = circumstancesOf(k, id)
	}
	replies, err := places.Replies(ctx, i.scripts, keys, calls)
	if err != nil {
		return nil, err
	}
	at := home
	for n, r := range replies {
		one := readCircumstances(keys[n].Topic, id, r)
		better := c.info == nil && (one.Finding != "" || c.Free.IsZero() && !one.Free.IsZero())
		if one.info != nil { // a done job of an earlier generation has freed the ID
			better = c.info == nil || c.info.State == StateDone
		}
		if better {
			c, at = one, keys[n]
		}
	}
	whole, err := i.wholeLimits(ctx, home)
	if err != nil {
		return nil, err
	}
	around, err := places.LookAround(ctx, i.scripts, i.o.prefix, home.Topic, m, r.Now())
	if err != nil {
		return nil, err
	}
	open, ref := m.Open(), places.RefOf(at.Topic)
	c.rate, c.Limits.Rate = whole.Rate, limitsFact(0, whole.Rate).Rate
	c.Part = &explain.Part{
		Generation: ref.Generation, Index: ref.Index, Open: open.Parts, Closed: ref.Generation != open.Number,
		Leased: around.Leased, Waiting: around.Waiting, Limit: whole.Running,
	}
	for _, g := range m {
		if g.Number == ref.Generation && g.Number != part.Home {
			c.Part.Of = g.Parts
		}
	}
	for _, one := range around.Closing {
		c.Part.Closing = append(c.Part.Closing, explain.Closing{Generation: one.Number, Of: one.Parts, Places: one.Places, Jobs: one.Jobs})
	}
	return c, nil
}

// wholeLimits reads the limits of a topic, not of its share of them.
func (i *Inspector) wholeLimits(ctx context.Context, home *script.Keys) (Limits, error) {
	cmd := redis.NewSliceCmd(ctx, "hmget", home.Meta, "shared", "flow")
	i.scripts.Send(ctx, nil, []redis.Cmder{cmd})
	text, err := script.Reply(cmd.Val()), cmd.Err()
	return decodeLimits(cmp.Or(text.Text(0), text.Text(1))), i.scripts.Blame(ctx, err, home.Meta)
}

// depth returns how many pages Redis may be told to act on before their outcomes are known. It is
// one where the page after them may not be read ahead, and where OnProgress may end the context: no
// call is on its way then.
func (r *application) depth() int {
	if r.readsAhead() && r.opts.progress == nil {
		return 2
	}
	return 1
}

// readsAhead reports whether a page is read while Redis acts on the one before it. It is not if it
// would be old by its turn, because of Pace. Of ready and running jobs, places are harder to find
// again when the jobs before them are acted on at the same time.
func (r *application) readsAhead() bool { return r.opts.pace == 0 && r.query.indexed() }

// following returns the page that next reads, and reads it if that is none.
func (r *application) following(ctx context.Context, next *ahead, q Query) (*Page, error) {
	if next.done == nil {
		return r.read(ctx, q)
	}
	return next.page()
}

// pageAt returns the query of the page at a place. acting is the steps before it.
func (r *application) pageAt(at Cursor, acting []*step) Query {
	q, open := r.query, 0
	for _, s := range acting {
		open += s.jobs
	}
	q.Cursor = at
	if r.opts.pace > 0 {
		q.Limit = min(q.Limit, max(1, r.opts.pace/10))
	}
	if r.opts.most > 0 {
		q.Limit = int(min(int64(q.Limit), r.opts.most-r.sum.Done-r.sum.Failed-int64(open)))
	}
	return q
}

// read reads a page. Nothing but the places of its jobs is needed.
func (r *application) read(ctx context.Context, q Query) (*Page, error) {
	return r.client.inspector().jobs(ctx, q, true)
}

// An ahead is a page that is read on a goroutine of its own. The zero value is none.
type ahead struct {
	done chan struct{} // closed when the goroutine has ended; nil: there is none
	read *Page
	err  error
}

// page waits for the page.
func (a *ahead) page() (*Page, error) {
	if a.done != nil {
		<-a.done
	}
	return a.read, a.err
}

// readAhead begins to read a page, if it is needed and may be read ahead.
func (r *application) readAhead(ctx context.Context, q Query, needed bool) *ahead {
	a := &ahead{}
	if !needed || q.Limit < 1 || !r.readsAhead() {
		return a
	}
	a.done = make(chan struct{})
	contain.Launch(nil, func() {
		a.read, a.err = r.read(ctx, q)
		close(a.done)
	}, func(c *contain.Crash) {
		a.err = c
		close(a.done)
	})
	return a
}
