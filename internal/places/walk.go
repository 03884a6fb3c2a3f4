package places

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/script"
)

const (
	lookMost    = 1000    // the most entries that one call looks at
	strayWindow = 1 << 10 // entries of ready that page.lua searches for a place
	placeWords  = 5       // of a place in ready, in front of the neighbours
)

// The states that a query can select.
const (
	stateScheduled = "scheduled"
	stateReady     = "ready"
	stateRunning   = "running"
	stateDead      = "dead"
	stateDone      = "done"
)

// A Query says which jobs a walk looks for. It is valid, and has its defaults.
type Query struct {
	Topic, State string
	From, To     string // bounds of scores
	Latest       bool
	IDPrefix     string
	Key          string
	MinAttempt   int
	Failed       bool  // only jobs with errors match
	Needles      []any // texts that the records of all matching jobs contain
	Filtered     bool  // jobs must be looked at one by one

	Limit, Budget int
	Offset        int64
	Place         []string // of the cursor; nil: from the beginning

	Largest int // bytes of the largest record that is read; -1: entries are not looked up
	Cut     int // bytes of each record that the script returns, -1 for all
}

// indexed reports whether an index has the jobs by the time that goes with their state.
func (q *Query) indexed() bool {
	return q.State == stateScheduled || q.State == stateDead || q.State == stateDone
}

// A Refusal is why a query cannot be carried out.
type Refusal struct {
	Cursor bool // it is the cursor
	Why    string
}

func (r *Refusal) Error() string { return r.Why }

// A Row is what the page script says about one entry.
type Row struct {
	reply script.Reply
	n     int
}

// ID returns the ID of the job.
func (r Row) ID() string { return r.reply.List(6).Text(r.n) }

// Size returns the size of its record, or of what is kept of it.
func (r Row) Size() int64 { return r.reply.List(12).Number(r.n) }

// Text returns a column of the reply.
func (r Row) Text(column int) string { return r.reply.List(column).Text(r.n) }

// Columns of the reply of page.lua.
const (
	ColumnScore = 7 + iota
	ColumnValue
	ColumnTries
	ColumnLog
	ColumnMove
	ColumnPlace = 14
	ColumnNote  = 15
)

// A Reader makes jobs of what the script says.
type Reader[J any] struct {
	Scripts script.Caller
	Prefix  string
	// Scan calls read for a scan of a key, all calls of which must go to one node.
	Scan func(ctx context.Context, key string, read func(scripts script.Caller) error) error
	// Job returns a job. is is false if there is none, and whole is false if its record was cut
	// before its payload.
	Job func(k *script.Keys, row Row) (job J, is, whole bool)
	// Jobs returns the jobs whose records were cut, by their IDs.
	Jobs   func(ctx context.Context, k *script.Keys, ids []string) (map[string]J, error)
	Admits func(job J) bool // it matches the filters
}

// A Page is what has been read.
type Page[J any] struct {
	Jobs     []J
	Examined int   // entries that were looked at
	Total    int64 // jobs in the state, and between the bounds
	At       int64 // when it was read, Unix ms
	Next     []string
}

// A walk reads the jobs of one place, call by call.
type walk[J any] struct {
	*Reader[J]
	q    *Query
	keys *script.Keys
	at   Ref

	place []string // from which it goes on; nil: from the beginning
	ended bool
	page  *Page[J]
	marks []Mark          // of the jobs of the page, if an index has them
	seen  map[string]bool // IDs of the page

	asks  bool         // the first call asks for the map, too
	asked Asked        // zero: not yet
	run   *runningWalk // of running jobs; nil: not begun
}

// A runningWalk is what is known of running jobs.
type runningWalk struct {
	pending  []string // to look at
	scanning bool     // pending does not hold all: ZSCAN returns more
	scan     string   // the next cursor of ZSCAN; "": there is none
}

func newWalk[J any](r *Reader[J], q *Query, k *script.Keys) *walk[J] {
	return &walk[J]{Reader: r, q: q, keys: k, at: RefOf(k.Topic), page: new(Page[J]), seen: make(map[string]bool)}
}

// step makes one call that looks at jobs.
func (w *walk[J]) step(ctx context.Context) error {
	if w.q.State == stateRunning {
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
	return w.took(ctx, r)
}

// took notes what a call has returned.
func (w *walk[J]) took(ctx context.Context, r script.Reply) error {
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
func (w *walk[J]) part() (which string, place []string) {
	if w.q.State != stateReady {
		return w.q.State, w.place
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
func (w *walk[J]) portion() int {
	n := min(lookMost, w.q.Budget-w.page.Examined)
	if w.page.Examined == 0 && !w.q.Filtered {
		n = min(n, w.q.Limit) // usually each entry is a job
	}
	return n
}

// look calls the script for some entries.
func (w *walk[J]) look(ctx context.Context, which string, entries int, place []string) (script.Reply, error) {
	call := w.call(which, entries, min(entries, w.q.Limit-len(w.page.Jobs)), script.CallBytes, place)
	var along []redis.Cmder
	if w.asks && w.asked.keys == nil {
		w.asked = AskMap(ctx, w.keys)
		along = append(along, w.asked.SliceCmd)
	}
	w.Scripts.DoWith(ctx, []*script.Call{call}, along...)
	return w.heard(call)
}

// heard reads the reply of a call.
func (w *walk[J]) heard(call *script.Call) (script.Reply, error) {
	r := call.Reply
	if call.Err == nil {
		w.page.At = r.Now()
		if r.Status() == "ok" {
			w.page.Total = max(0, r.Number(2))
		}
	}
	return r, call.Err
}

// call returns a call for some entries, that returns up to so many jobs of them, and about so many
// bytes.
func (w *walk[J]) call(which string, entries, want, bytes int, place []string) *script.Call {
	return script.NewCall(script.Page, w.keys.Topic, entries, w.keys.Of(script.Page, ""), w.q.words(which, entries, want, bytes, place))
}

// words returns the arguments of a call.
func (q *Query) words(which string, entries, want, bytes int, place []string) []any {
	finished := max(0, q.MinAttempt-1)
	switch {
	case q.State == stateDone:
		finished = 0 // the result has it
	case q.State == stateDead && finished > 0:
		finished = q.MinAttempt
	}
	from, to := q.From, q.To
	if which == partLanes {
		from, to = "-", "+"
		if q.Key != "" {
			lane := string([]byte{byte(len(q.Key))}) + q.Key
			from, to = "["+lane, "("+lane+"g" // a place goes on with hexadecimal digits
		}
	}
	args := make([]any, 0, 13+len(q.Needles)+len(place))
	args = append(args, which, flag(q.Latest), entries, want, bytes, q.Largest, q.Cut,
		from, to, q.IDPrefix, finished, flag(q.Failed), len(q.Needles))
	args = append(args, q.Needles...)
	for _, word := range place {
		args = append(args, word)
	}
	return args
}

func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}

// search finds a place in ready that is not where it should be. What servers drop from ready moves
// it towards the head, and no counter knows. If it is nowhere within the budget, the walk goes on
// where it should be.
func (w *walk[J]) search(ctx context.Context) (script.Reply, error) {
	if len(w.place) < placeWords {
		return nil, &Refusal{true, "it has no place in ready"}
	}
	place := slices.Clone(w.place)
	for closer := strayWindow; closer <= w.q.Budget; closer += strayWindow {
		place[1] = strconv.Itoa(closer)
		r, err := w.look(ctx, stateReady, w.portion(), place)
		if err != nil || r.Status() != "lost" {
			return r, err
		}
	}
	place = append(place[:placeWords-1], "0")
	return w.look(ctx, stateReady, w.portion(), place)
}

// add adds the jobs of a reply to the page.
func (w *walk[J]) add(ctx context.Context, r script.Reply) error {
	w.page.Examined += int(r.Number(3))
	n := len(r.List(6))
	jobs, is := make([]J, n), make([]bool, n)
	var long []string // whose records were cut too short
	cut := make([]bool, n)
	for i := range n {
		row := Row{r, i}
		var whole bool
		if jobs[i], is[i], whole = w.Job(w.keys, row); !whole {
			cut[i], long = true, append(long, row.ID())
		}
	}
	if len(long) > 0 {
		found, err := w.Jobs(ctx, w.keys, long)
		if err != nil {
			return err
		}
		for i := range n {
			if cut[i] {
				jobs[i], is[i] = found[Row{r, i}.ID()]
			}
		}
	}
	for i, job := range jobs {
		row := Row{r, i}
		if id := row.ID(); is[i] && !w.seen[id] && w.Admits(job) {
			w.seen[id] = true
			w.page.Jobs = append(w.page.Jobs, job)
			w.marks = append(w.marks, newMark(row.Text(ColumnScore), w.at, id))
		}
	}
	return nil
}

// count reads only the number of jobs.
func (w *walk[J]) count(ctx context.Context) error {
	_, err := w.look(ctx, w.q.State, 0, nil)
	return err
}

// errNoOrder is the error of an Offset among more running jobs than have an order.
func errNoOrder(offset int) error {
	return &Refusal{Why: fmt.Sprintf("offset %d: more than %d jobs are running, which have no order", offset, snapshotJobs)}
}
