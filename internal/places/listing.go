package places

import (
	"context"
	"slices"
	"strconv"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

// A Listing reads the jobs of a query: those of its topic, and if that has partitions, those of all
// of them.
type Listing[J any] struct {
	Page  Page[J]
	Ended bool

	q     *Query
	home  *walk[J]
	known bool       // whether the topic has partitions
	walks []*walk[J] // of all places, in the order of the query; nil: there are no partitions

	// Of jobs that an index finds: they are merged.
	lines []Line // what is known of each place
	first Mark   // from which it began; its Place and ID are zero at the beginning
	last  Mark   // of the last job in the page

	// Of ready and running jobs: one place comes after the other.
	at     int     // the one that goes on
	counts []int64 // of jobs in each place
}

// NewListing returns a listing that begins at the place of a query.
func NewListing[J any](r *Reader[J], q *Query) *Listing[J] {
	l := &Listing[J]{q: q, home: newWalk(r, q, script.NewKeys(r.Prefix, q.Topic))}
	l.home.page, l.home.asks = &l.Page, true
	if l.home.place = q.Place; q.Place == nil && q.Offset > 0 {
		l.home.place = []string{skipped, strconv.FormatInt(q.Offset, 10)}
	}
	return l
}

// Fill reads a page.
func (l *Listing[J]) Fill(ctx context.Context) error {
	for !l.Ended && len(l.Page.Jobs) < l.q.Limit && l.Page.Examined < l.q.Budget {
		if err := l.Step(ctx); err != nil {
			return err
		}
	}
	if !l.Ended {
		l.Page.Next = l.place()
	}
	return nil
}

// place returns from where the next page goes on.
func (l *Listing[J]) place() []string {
	switch {
	case l.walks == nil:
		return l.home.place
	case !l.q.indexed():
		return join(l.walks[l.at].at, l.walks[l.at].place)
	}
	mark := l.last
	if next := nextLine(l.lines, l.q.Latest); next >= 0 && !l.lines[next].Jobs {
		mark = l.lines[next].Head // whatever comes before that was looked at
	}
	return join(mark.Place, []string{mark.Score, mark.ID})
}

// Step looks at some more jobs.
func (l *Listing[J]) Step(ctx context.Context) error {
	if !l.known {
		if err := l.begin(ctx); err != nil || l.walks == nil || len(l.Page.Jobs) > 0 || l.Ended {
			return err
		}
	}
	switch {
	case l.walks == nil:
		err := l.home.step(ctx)
		l.Ended = l.home.ended
		return err
	case l.q.indexed():
		return l.merge(ctx)
	}
	if l.Page.Examined >= l.q.Budget { // by the first call
		return nil
	}
	w := l.walks[l.at]
	w.page = &l.Page
	if err := w.step(ctx); err != nil {
		return In(w.keys, err)
	}
	l.turn()
	return nil
}

// StepAtHome looks at some more jobs of the topic itself only.
func (l *Listing[J]) StepAtHome(ctx context.Context) error {
	l.known = true
	return l.Step(ctx)
}

// turn goes on to the next place that has jobs when the present one has no more.
func (l *Listing[J]) turn() {
	for l.at < len(l.walks) && (l.walks[l.at].ended || l.counts[l.at] == 0) {
		l.at++
	}
	l.Ended = l.at == len(l.walks)
	l.Page.Total = sum(l.counts)
}

// begin finds out whether the topic has partitions, and from where on each of its places is read.
// The first call for a topic asks for its map at the same time. If there is one, the jobs that it
// has returned are the first ones of the topic itself.
func (l *Listing[J]) begin(ctx context.Context) error {
	h := l.home
	at, inner, parted := cutPlace(h.place)
	var m part.Map
	var err error
	if parted {
		m, err = ReadMap(ctx, h.Scripts, h.keys)
	} else if err = h.step(ctx); err == nil {
		m, err = h.asked.Map(ctx, h.Scripts)
	}
	if err != nil {
		return err
	}
	if l.known = true; len(m) == 0 && !parted {
		l.Ended = h.ended
		return nil
	}
	// What the topic has returned is not always first.
	skip := len(inner) > 0 && inner[0] == skipped
	if parted || skip || len(inner) == 0 && l.q.Latest && !l.q.indexed() {
		l.home, l.Page = newWalk(h.Reader, l.q, h.keys), Page[J]{}
	}
	for _, k := range All(h.Prefix, l.q.Topic, m) {
		w := l.home
		if k.Topic != l.q.Topic {
			w = newWalk(h.Reader, l.q, k)
		}
		l.walks = append(l.walks, w)
	}
	if l.q.indexed() {
		return l.beginMerge(ctx, at, inner, skip)
	}
	return l.beginTurns(ctx, at, inner, skip, !parted && len(inner) == 0)
}

// beginTurns finds the place that goes on. fresh: it is the first page.
func (l *Listing[J]) beginTurns(ctx context.Context, at Ref, inner []string, skip, fresh bool) error {
	if l.q.Latest {
		slices.Reverse(l.walks)
	}
	if err := l.countAll(ctx); err != nil {
		return err
	}
	before, found := l.q.Offset, false
	for i, w := range l.walks {
		c := w.at.Compare(at)
		if l.q.Latest {
			c = -c
		}
		switch {
		case fresh, found:
		case skip && before >= l.counts[i]:
			before -= l.counts[i]
			w.ended = true
		case skip:
			w.place, found = []string{skipped, strconv.FormatInt(before, 10)}, true
		case c < 0:
			w.ended = true // it was read
		case c == 0 && w.place == nil:
			w.place = inner
		}
	}
	l.turn()
	return nil
}

// countAll reads the number of jobs in each place.
func (l *Listing[J]) countAll(ctx context.Context) error {
	keys, calls := make([]*script.Keys, len(l.walks)), make([]*script.Call, len(l.walks))
	for i, w := range l.walks {
		keys[i], calls[i] = w.keys, w.call(l.q.State, 0, 0, script.CallBytes, nil)
	}
	replies, err := Replies(ctx, l.home.Scripts, keys, calls)
	if err != nil {
		return err
	}
	l.counts = nil
	for _, r := range replies {
		l.Page.At = r.Now()
		l.counts = append(l.counts, max(0, r.Number(2)))
	}
	return nil
}

// Count returns the number of jobs in the state and between the bounds.
func (l *Listing[J]) Count(ctx context.Context) (int64, error) {
	err := l.home.count(ctx)
	var m part.Map
	if err == nil {
		m, err = l.home.asked.Map(ctx, l.home.Scripts)
	}
	if err != nil || len(m) == 0 {
		return l.Page.Total, err
	}
	for _, k := range Partitions(l.home.Prefix, l.q.Topic, m) {
		l.walks = append(l.walks, newWalk(l.home.Reader, l.q, k))
	}
	if err := l.countAll(ctx); err != nil {
		return 0, err
	}
	return l.Page.Total + sum(l.counts), nil
}

// beginMerge finds from where on each place is read: behind a mark of all of them.
func (l *Listing[J]) beginMerge(ctx context.Context, at Ref, inner []string, skip bool) error {
	l.lines = make([]Line, len(l.walks))
	h := l.home
	if h.page == &l.Page { // it has read some
		page := l.Page
		h.page, l.Page = &page, Page[J]{Examined: page.Examined, At: page.At}
	}
	switch {
	case skip:
		s := Search{Scripts: h.Scripts, From: l.q.From, To: l.q.To}
		for _, w := range l.walks {
			index := map[string]string{stateScheduled: w.keys.Bucket, stateDead: w.keys.Dead, stateDone: w.keys.Done}
			s.Zsets, s.Places = append(s.Zsets, index[l.q.State]), append(s.Places, w.at)
		}
		mark, over, err := s.Passed(ctx, l.q.Offset, l.q.Latest)
		if l.first = mark; err != nil || over {
			l.Ended = over
			return err
		}
	case len(inner) == 2:
		l.first = newMark(inner[0], at, inner[1])
	case len(inner) != 0:
		return &Refusal{true, "it has no place among the jobs of partitions"}
	}
	l.last = l.first
	for i, w := range l.walks {
		if w.place == nil && l.first.Score != "" {
			w.place = l.first.Behind(w.at)
		}
		l.note(i)
	}
	return nil
}

// note notes what is known of a place.
func (l *Listing[J]) note(i int) {
	w, line := l.walks[i], &l.lines[i]
	*line = Line{Jobs: len(w.page.Jobs) > 0}
	switch {
	case line.Jobs:
		line.Head = w.marks[0]
	case w.ended:
		line.Over = true
	case len(w.place) == 2:
		line.Head = newMark(w.place[0], w.at, w.place[1])
	}
}

// merge reads from all places of which no job is left, and takes jobs in their order, as far as
// that is known.
func (l *Listing[J]) merge(ctx context.Context) error {
	if err := l.read(ctx); err != nil {
		return err
	}
	l.Page.Total = 0
	for _, w := range l.walks {
		l.Page.Total += w.page.Total
	}
	for len(l.Page.Jobs) < l.q.Limit {
		i := nextLine(l.lines, l.q.Latest)
		if i < 0 {
			l.Ended = true
			return nil
		}
		if !l.lines[i].Jobs {
			return nil
		}
		w := l.walks[i]
		if mark := w.marks[0]; !l.passed(mark) {
			l.Page.Jobs, l.last = append(l.Page.Jobs, w.page.Jobs[0]), mark
		}
		w.page.Jobs, w.marks = w.page.Jobs[1:], w.marks[1:]
		l.note(i)
	}
	return nil
}

// passed reports whether an earlier page had a job. Only damaged scores can bring it back.
func (l *Listing[J]) passed(m Mark) bool {
	if l.first.Score == "" {
		return false
	}
	c := m.Compare(l.first)
	return c == 0 || l.q.Latest == (c > 0)
}

// read reads from all places of which no job is left.
func (l *Listing[J]) read(ctx context.Context) error {
	var empty []int
	for i, w := range l.walks {
		if !w.ended && len(w.page.Jobs) == 0 {
			empty = append(empty, i)
		}
	}
	if len(empty) == 0 {
		return nil
	}
	n := share(l.q.Limit-len(l.Page.Jobs), len(empty))
	left := (l.q.Budget - l.Page.Examined) / len(empty)
	if l.q.Filtered {
		n = left
	}
	n = max(1, min(n, left, lookMost))
	for some := range slices.Chunk(empty, abreast) {
		calls := make([]*script.Call, len(some))
		for at, i := range some {
			w := l.walks[i]
			calls[at] = w.call(l.q.State, n, n, max(script.CallBytes/len(some), leastBytes), w.place)
		}
		l.home.Scripts.DoWith(ctx, calls)
		for at, i := range some {
			w := l.walks[i]
			before := w.page.Examined
			r, err := w.heard(calls[at])
			if err == nil {
				err = w.took(ctx, r)
			}
			if err != nil {
				return In(w.keys, err)
			}
			l.Page.Examined += w.page.Examined - before
			l.Page.At = w.page.At
			l.note(i)
		}
	}
	return nil
}

// leastBytes is about how many bytes of a place are read at once, however many there are.
const leastBytes = 16 << 10
