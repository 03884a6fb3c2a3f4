package delayq

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

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

	// Up to that many running jobs, a page is made of the IDs of all of them.
	snapshotJobs = 10_000

	strayWindow = 1 << 10 // entries of ready that page.lua searches for a place
	placeWords  = 5       // of a place in ready, in front of the neighbours
)

// A walk reads the jobs of a query, call by call.
type walk struct {
	inspector *Inspector
	q         *Query // valid, with its defaults
	keys      *script.Keys
	from, to  string // bounds of scores
	largest   int    // bytes of the largest record that is read
	cut       int    // bytes of each record that the script returns, -1 for all

	place []string // from which it goes on; nil: from the beginning
	brief bool     // entries are not looked up: their jobs have only their places
	ended bool
	page  *Page           // what has been read
	seen  map[string]bool // IDs of the page

	begun    bool     // of running jobs: the other fields are set
	pending  []string // running jobs to look at
	scanning bool     // pending does not hold all running jobs: ZSCAN returns more
	scan     string   // the next cursor of ZSCAN; "": there is none
}

// shorten makes the walk read only where jobs are, if no filter needs more and entries without a
// record are rare.
func (w *walk) shorten() {
	q := *w.q
	q.IDPrefix = "" // the script compares it
	if q.indexed() && !q.filtered() {
		w.brief, w.largest = true, -1
	}
}

// fill reads a page.
func (w *walk) fill(ctx context.Context) error {
	for !w.ended && len(w.page.Jobs) < w.q.Limit && w.page.Examined < w.q.Budget {
		if err := w.step(ctx); err != nil {
			return err
		}
	}
	if !w.ended {
		w.page.Next = newCursor(w.id(), w.place)
	}
	return nil
}

// step makes one call that looks at jobs.
func (w *walk) step(ctx context.Context) error {
	if w.q.State == StateRunning {
		return w.stepRunning(ctx)
	}
	which, place := w.part()
	r, err := w.look(ctx, which, w.portion(), place)
	if err == nil && r.Status() == "lost" {
		r, err = w.search(ctx)
	}
	if err != nil {
		return err
	}
	looked := int(r.Number(3))
	if w.ended = r.Number(4) == 1; !w.ended && looked == 0 {
		return script.ErrReply
	}
	if looked > 0 {
		w.place = r.List(5).Texts()
	}
	if next := r.Text(13); w.ended && next != "" && w.q.Key == "" {
		w.place, w.ended = []string{next}, false
	}
	return w.add(ctx, r)
}

// The parts of a walk through ready jobs. One through lanes goes on at a place that begins with the
// name, and so does one through the other part from its beginning.
const (
	partReady = "ready"
	partLanes = "lanes"

	// skipped is the first word of the place of an Offset, which follows.
	skipped = "skip"
)

// part returns what the next call walks through, and from where. Of ready jobs those in ready come
// first and those in lanes after them.
func (w *walk) part() (which string, place []string) {
	which = string(w.q.State)
	if which != partReady {
		return which, w.place
	}
	switch {
	case len(w.place) > 0 && (w.place[0] == partLanes || w.place[0] == partReady):
		return w.place[0], w.place[1:]
	case (len(w.place) == 0 || w.place[0] == skipped) && (w.q.Latest || w.q.Key != ""):
		return partLanes, w.place
	}
	return partReady, w.place
}

// portion returns how many entries the next call looks at.
func (w *walk) portion() int {
	n := min(listJobs, w.q.Budget-w.page.Examined)
	if w.page.Examined == 0 && !w.q.filtered() {
		n = min(n, w.q.Limit) // usually each entry is a job
	}
	return n
}

// look calls the script for some entries.
func (w *walk) look(ctx context.Context, which string, entries int, place []string) (script.Reply, error) {
	q := w.q
	finished := max(0, q.MinAttempt-1)
	switch {
	case q.State == StateDone:
		finished = 0 // the result has it
	case q.State == StateDead && finished > 0:
		finished = q.MinAttempt
	}
	needles := q.needles()
	from, to := w.from, w.to
	if which == partLanes {
		from, to = "-", "+"
		if q.Key != "" {
			lane := string([]byte{byte(len(q.Key))}) + q.Key
			from, to = "["+lane, "("+lane+"g" // a place goes on with hexadecimal digits
		}
	}
	args := make([]any, 0, 13+len(needles)+len(place))
	args = append(args, which, flag(q.Latest), entries, min(entries, q.Limit-len(w.page.Jobs)), script.CallBytes, w.largest, w.cut,
		from, to, q.IDPrefix, finished, flag(q.failed()), len(needles))
	args = append(args, needles...)
	for _, word := range place {
		args = append(args, word)
	}
	return w.call(ctx, entries, args)
}

func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}

// call calls the script.
func (w *walk) call(ctx context.Context, jobs int, args []any) (script.Reply, error) {
	r, err := w.inspector.exec(ctx, script.Page, w.keys, jobs, args...)
	if err == nil {
		w.page.At = msTime(r.Now())
		if r.Status() == "ok" {
			w.page.Total = max(0, r.Number(2))
		}
	}
	return r, err
}

// count reads only the number of jobs.
func (w *walk) count(ctx context.Context) error {
	_, err := w.look(ctx, string(w.q.State), 0, nil)
	return err
}

// search finds a place in ready that is not where it should be. What servers drop from ready moves
// it towards the head, and no counter knows. If it is nowhere within the budget, the walk goes on
// where it should be.
func (w *walk) search(ctx context.Context) (script.Reply, error) {
	if len(w.place) < placeWords {
		return nil, fmt.Errorf("%w: it has no place in ready", ErrCursor)
	}
	place := slices.Clone(w.place)
	for closer := strayWindow; closer <= w.q.Budget; closer += strayWindow {
		place[1] = strconv.Itoa(closer)
		r, err := w.look(ctx, string(w.q.State), w.portion(), place)
		if err != nil || r.Status() != "lost" {
			return r, err
		}
	}
	place = append(place[:placeWords-1], "0")
	return w.look(ctx, string(w.q.State), w.portion(), place)
}

// add adds the jobs of a reply to the page.
func (w *walk) add(ctx context.Context, r script.Reply) error {
	w.page.Examined += int(r.Number(3))
	ids := r.List(6).Texts()
	infos := make([]*JobInfo, len(ids))
	var long []string // whose records were cut too short
	for n, id := range ids {
		info, whole := w.described(id, func(column int) string { return r.List(column).Text(n) }, r.List(12).Number(n))
		if whole {
			infos[n] = info
		} else {
			long = append(long, id)
		}
	}
	if len(long) > 0 {
		list, err := w.inspector.jobInfos(ctx, w.q.Topic, recordHead, long)
		if err != nil {
			return err
		}
		known := make(map[string]*JobInfo, len(list))
		for _, info := range list {
			if info.State == w.q.State { // it may have moved on
				known[info.ID] = info
			}
		}
		for n, id := range ids {
			if infos[n] == nil {
				infos[n] = known[id]
			}
		}
	}
	for _, info := range infos {
		if info != nil && !w.seen[info.ID] && w.q.admits(info) {
			info.Payload = nil
			w.seen[info.ID] = true
			w.page.Jobs = append(w.page.Jobs, info)
		}
	}
	return nil
}

// described returns what a reply says about a job. whole is false if the record was cut before its
// payload.
func (w *walk) described(id string, at func(column int) string, size int64) (info *JobInfo, whole bool) {
	const columnScore, columnValue, columnTries, columnLog, columnMove, columnPlace, columnNote = 7, 8, 9, 10, 11, 14, 15
	value := at(columnValue)
	partial := value == ""
	if partial {
		value = "-" // a record that cannot be read
	}
	column := func(column int) string {
		switch state := w.q.State; {
		case column == script.ColumnRecord && state != StateDone, column == script.ColumnResult && state == StateDone:
			return value
		case column == script.ColumnAttempts:
			return at(columnTries)
		case column == script.ColumnErrors:
			return at(columnLog)
		case column == script.ColumnMoved:
			return at(columnMove)
		case column == script.ColumnPlace:
			return at(columnPlace)
		case column == script.ColumnNote:
			return at(columnNote)
		case column == script.ColumnBucket && state == StateScheduled, column == script.ColumnLease && state == StateRunning,
			column == script.ColumnDead && state == StateDead, column == script.ColumnDone && state == StateDone:
			return at(columnScore)
		}
		return ""
	}
	if w.brief {
		info = &JobInfo{Job: Job{Topic: w.q.Topic, ID: id, Attempt: 1}, State: w.q.State} // no MinAttempt above 1 is set
		info.placed(0, column)
		if info.State == StateDone {
			info.KeptUntil = scoreTime(at(columnScore))
		}
		return info, true
	}
	info = readJobInfo(w.q.Topic, id, w.cut, column)
	switch {
	case info == nil:
		return nil, true
	case partial:
		info.Partial, info.PayloadSize, info.Undecodable, info.Raw = true, int(size), nil, nil
		info.seen = seen{}
	case info.Undecodable != nil && int64(len(value)) < size:
		return nil, false
	default:
		info.seen.bytes = int(size)
	}
	return info, true
}

// The words with which the place among running jobs begins.
const (
	afterID = "after" // jobs are sorted by ID: the ID follows
	scanned = "scan"  // they are not: the cursor of ZSCAN follows, and IDs that it has returned
)

// stepRunning makes one call that looks at running jobs.
func (w *walk) stepRunning(ctx context.Context) error {
	if !w.begun {
		if err := w.beginRunning(ctx); err != nil {
			return err
		}
	}
	if w.scanning && len(w.pending) == 0 && w.scan != "" {
		if err := w.scanRunning(ctx, w.portionRunning()); err != nil {
			return err
		}
	}
	if some := w.pending[:min(len(w.pending), w.portionRunning())]; len(some) > 0 {
		r, err := w.look(ctx, string(StateRunning), len(some), some)
		if err != nil {
			return err
		}
		looked := int(r.Number(3))
		if looked == 0 || looked > len(some) {
			return script.ErrReply
		}
		w.place, w.pending = []string{afterID, some[looked-1]}, w.pending[looked:]
		if err := w.add(ctx, r); err != nil {
			return err
		}
	}
	w.ended = len(w.pending) == 0 && w.scan == ""
	if w.scanning {
		w.place = append([]string{scanned, w.scan}, w.pending...)
	}
	return nil
}

// portionRunning returns how many running jobs the next call looks at.
func (w *walk) portionRunning() int {
	n := min(listJobs, w.q.Budget-w.page.Examined)
	if w.scanning || !w.q.filtered() {
		// The cursor holds what ZSCAN returns beyond the page, so that should be little.
		n = min(n, w.q.Limit-len(w.page.Jobs))
	}
	return n
}

// scanRunning makes one call of ZSCAN, which returns about that many IDs.
func (w *walk) scanRunning(ctx context.Context, about int) error {
	r, err := w.look(ctx, "ids", about, []string{w.scan})
	if err != nil {
		return err
	}
	if w.scan = r.List(5).Text(0); w.scan == "0" {
		w.scan = ""
	}
	w.pending = append(w.pending, r.List(6).Texts()...)
	return nil
}

// beginRunning finds the running jobs from a place on. If there are few, it reads all of their IDs
// and sorts them. What ZSCAN returns includes every ID that is there all the time.
func (w *walk) beginRunning(ctx context.Context) error {
	w.begun = true
	after, place, offset := "", w.place, 0
	switch {
	case len(place) == 0:
	case place[0] == skipped:
		offset = int(min(w.q.Offset, math.MaxInt))
	case place[0] == scanned && len(place) > 1:
		w.scanning, w.scan, w.pending = true, place[1], place[2:]
		return nil
	case place[0] == afterID && len(place) == 2:
		after = place[1]
	default:
		return fmt.Errorf("%w: it has no place among running jobs", ErrCursor)
	}
	all := w.inspector
	defer func() { w.inspector = all }()
	err := all.scan(ctx, w.keys.Leases, func(one *Inspector) error {
		w.inspector, w.scanning, w.pending = one, false, nil
		for w.scan = "0"; w.scan != ""; {
			if err := w.scanRunning(ctx, listJobs); err != nil {
				return err
			}
			if after == "" && w.page.Total > snapshotJobs {
				w.scanning, w.scan, w.pending = true, "0", nil
				if offset > 0 {
					return invalid([]error{fmt.Errorf("offset %d: more than %d jobs are running, which have no order", offset, snapshotJobs)})
				}
				return nil
			}
		}
		return nil
	})
	if err != nil || w.scanning {
		return err
	}
	slices.Sort(w.pending)
	w.pending = slices.DeleteFunc(slices.Compact(w.pending), func(id string) bool {
		switch {
		case !strings.HasPrefix(id, w.q.IDPrefix):
			return true
		case after == "":
			return false
		}
		return w.q.Latest == (id > after) || id == after
	})
	if w.q.Latest {
		slices.Reverse(w.pending)
	}
	w.pending = w.pending[min(offset, len(w.pending)):]
	return nil
}
