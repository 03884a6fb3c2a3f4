package delayq

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/record"
)

const (
	checkBytes    = 256 << 10 // about how many bytes of records and books one call reads
	checkLimit    = 1000      // maximum number of entries of a key that one call reads
	checkWalk     = 5000      // how many IDs of ready one call reads, if they are short
	checkStrays   = 10_000    // how many jobs without a place are resolved together
	checkMend     = 100       // maximum number of jobs that one call repairs
	checkFindings = 1000      // maximum number of findings in a report
)

// A doctor checks one topic.
//
// The hard part is a record in neither bucket nor leases nor dead. It should be in ready, but a
// list cannot be searched for a member. So ready is read once before the pool is scanned. IDs that
// the scan finds in no place, and that were not in ready, may have arrived there since.
//
// So ready is read again, from its tail to its head. Jobs leave at the head only, so one that
// stays is never overlooked. IDs that are not in it are looked up, and ready is read once more.
// The mend script has the last word: it rejects a job that has moved to ready in the meantime,
// because the job is no longer as it was looked up. The script itself searches both ends of ready.
type doctor struct {
	scripts caller
	rdb     redis.Cmdable
	keys    *keys
	repair  int
	timeout time.Duration                                       // of a call; 0: that of rdb
	pause   func(ctx context.Context, took time.Duration) error // between two calls
	// known reports whether an earlier check of keys with these sizes has found nothing. Nil: not
	// asked.
	known  func(ctx context.Context, sizes []int64) bool
	report *CheckReport

	seed    maphash.Seed
	inReady []uint64 // sorted hashes of the IDs in ready and handoff
	inLane  []uint64 // sorted hashes of the IDs in lane whose places are not in keyed
	wrong   []string // keys of a wrong type
	strays  []string // IDs that have no place, as far as known
	late    []string // IDs with an impossible time in the bucket
}

func newDoctor(scripts caller, rdb redis.Cmdable, k *keys, repair bool) *doctor {
	d := &doctor{
		scripts: scripts, rdb: rdb, keys: k, report: &CheckReport{Found: make(map[FindingKind]int)}, seed: maphash.MakeSeed(),
		pause: func(ctx context.Context, _ time.Duration) error { return context.Cause(ctx) },
	}
	if repair {
		d.repair = 1
	}
	return d
}

// check checks the topic once.
func (d *doctor) check(ctx context.Context) error {
	_, sizes, err := d.slice(ctx, "all", "0", checkLimit)
	if err != nil {
		return err
	}
	if d.known != nil && len(d.report.Found) == 0 && slices.Max(sizes) > 0 && d.known(ctx, sizes) {
		return nil
	}
	lists := sizes[len(d.keys.checked()):]
	if slices.Max(lists) > 0 && d.sound(d.keys.pool) {
		if err := d.walk(ctx, func(id string) { d.inReady = append(d.inReady, maphash.String(d.seed, id)) }); err != nil {
			return err
		}
		slices.Sort(d.inReady)
	}
	for i, key := range d.keys.checked() {
		if sizes[i] <= 0 || !d.sound(key) {
			continue
		}
		for cursor := "0"; ; {
			if cursor, _, err = d.slice(ctx, d.keys.name(key), cursor, checkLimit); err != nil {
				return err
			}
			if len(d.strays)+len(d.late) >= checkStrays || cursor == "0" {
				if err := d.resolve(ctx); err != nil {
					return err
				}
			}
			if cursor == "0" {
				break
			}
		}
	}
	return nil
}

// sound reports whether a key can be scanned: neither it nor any key that this needs is of a wrong
// type.
func (d *doctor) sound(key string) bool {
	k := d.keys
	needs := []string{k.pool, k.leases}
	switch key {
	case k.pool, k.bucket: // findings there are looked up and repaired
		needs = append(needs, k.bucket, k.dead, k.ready, k.handoff, k.attempts, k.moved, k.turn, k.lane, k.keyed, k.meta, k.blockers)
	case k.lane:
		needs = append(needs, k.bucket, k.dead, k.turn, k.keyed, k.held, k.parked)
	case k.keyed:
		needs = append(needs, k.lane)
	case k.turn, k.rates:
		needs = nil
	case k.blockers:
		needs = append(needs, k.keyed, k.bucket, k.dead, k.parked, k.turn, k.lane, k.ready)
	case k.rules:
		needs = []string{k.meta}
	case k.holders:
		needs = append(needs, k.keyed)
	case k.held, k.parked:
		needs = []string{k.turn, k.lane, k.leases, k.rates, k.rules, k.meta}
	case k.done, k.results:
		needs = []string{k.done, k.results}
	case k.schedules:
		needs = []string{k.slots, k.waiting, k.fired}
	case k.slots, k.waiting, k.fired, k.runs:
		needs = []string{k.schedules}
	}
	return !slices.ContainsFunc(append(needs, key), func(name string) bool { return slices.Contains(d.wrong, name) })
}

// paced makes a call and then pauses.
func (d *doctor) paced(ctx context.Context, call func(ctx context.Context) error) error {
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if d.timeout > 0 {
		bounded, cancel = context.WithTimeout(ctx, d.timeout)
	}
	defer cancel()
	began := time.Now()
	if err := call(bounded); err != nil {
		return err
	}
	return d.pause(ctx, time.Since(began))
}

// ask executes the check script once.
func (d *doctor) ask(ctx context.Context, jobs int, args ...any) (r reply, err error) {
	err = d.paced(ctx, func(ctx context.Context) (err error) {
		r, err = d.scripts.exec(ctx, checkScript, d.keys, "", jobs, args...)
		return err
	})
	return r, err
}

// slice scans a part of the topic.
func (d *doctor) slice(ctx context.Context, part, cursor string, limit int) (next string, sizes []int64, err error) {
	k := d.keys
	r, err := d.ask(ctx, limit, part, cursor, limit, checkBytes, d.repair)
	if err != nil {
		return "", nil, err
	}
	if part == k.name(k.pool) {
		d.report.Jobs += r.number(3)
	}
	for i := range r.list(4) {
		found := Finding{r.list(4).text(i), r.list(5).text(i), FindingKind(r.list(6).text(i)), r.list(7).number(i) == 1}
		switch {
		case found.Kind == FindingWrongType:
			d.wrong = append(d.wrong, found.Key)
			found.Key = k.name(found.Key)
			d.note(found)
		case found.Kind == FindingBadTime && found.Key == k.name(k.bucket):
			d.late = append(d.late, found.ID)
		default:
			if found.Kind == FindingNoLane {
				d.inLane = append(d.inLane, maphash.String(d.seed, found.ID))
			}
			d.note(found)
		}
	}
	slices.Sort(d.inLane)
	for i, nowhere := 0, r.list(9); i < len(nowhere); i++ {
		id := nowhere.text(i)
		hash := maphash.String(d.seed, id)
		_, waits := slices.BinarySearch(d.inReady, hash)
		if _, laned := slices.BinarySearch(d.inLane, hash); !waits && !laned {
			d.strays = append(d.strays, id)
		}
	}
	for i := range r.list(8) {
		sizes = append(sizes, r.list(8).number(i))
	}
	if part == "all" && len(sizes) != len(k.checked())+2 {
		return "", nil, errReply
	}
	return r.text(2), sizes, nil
}

func (d *doctor) note(found Finding) {
	d.report.Found[found.Kind]++
	if found.Repaired {
		d.report.Repaired++
	}
	if len(d.report.Findings) < checkFindings {
		d.report.Findings = append(d.report.Findings, found)
	}
}

// errGrowing is returned when a check cannot finish.
var errGrowing = errors.New("ready grows faster than it can be read")

// walk reads ready from its tail to its head, and then handoff.
func (d *doctor) walk(ctx context.Context, see func(id string)) error {
	if err := d.walkList(ctx, d.keys.ready, see); err != nil {
		return err
	}
	return d.walkList(ctx, d.keys.handoff, see)
}

// walkList reads a list from its tail to its head. Jobs pushed in the meantime make the walk
// longer, so it has a limit.
func (d *doctor) walkList(ctx context.Context, key string, see func(id string)) error {
	for passed, most := int64(0), int64(0); ; {
		r, err := d.ask(ctx, checkWalk, d.keys.name(key), passed, checkWalk, checkBytes, 0)
		if err != nil {
			return err
		}
		for i := range r.list(5) {
			for _, id := range r.list(5).list(i).texts() {
				see(id)
				passed++
			}
		}
		most = cmp.Or(most, 4*r.list(8).number(0)+20*checkWalk)
		switch {
		case r.text(2) == "0":
			return nil
		case passed > most:
			return errGrowing
		}
	}
}

// A stray is a job that may have lost its place.
type stray struct {
	id, nonce, attempts, moved string
	found                      Finding
	due                        int64
	where                      string // for the mend script: the due time, or dead
	size                       int
}

// resolve finds out which strays have lost their places, and repairs these.
func (d *doctor) resolve(ctx context.Context) error {
	missing := make(map[string]bool, len(d.strays))
	for _, id := range d.strays {
		missing[id] = true
	}
	if err := d.winnow(ctx, missing); err != nil {
		return err
	}
	slices.Sort(d.late)
	// A scan can return an ID twice.
	ids := slices.AppendSeq(slices.Compact(d.late), maps.Keys(missing))
	d.strays, d.late = nil, nil
	var list []*stray
	for len(ids) > 0 {
		some := ids[:min(len(ids), checkMend)]
		r, err := d.lookUp(ctx, some)
		if err != nil {
			return err
		}
		n := min(len(r.list(2)), len(some))
		for i, id := range some[:n] {
			if s := d.diagnose(id, func(column int) string { return r.list(2 + column).text(i) }); s != nil {
				list = append(list, s)
			} else {
				delete(missing, id)
			}
		}
		ids = ids[n:]
	}
	if err := d.winnow(ctx, missing); err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(s *stray) bool { return s.found.Kind == FindingNoPlace && !missing[s.id] })
	slices.SortFunc(list, func(a, b *stray) int { return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.id, b.id)) })
	for len(list) > 0 {
		n, bytes := 0, 0
		for n < len(list) && n < checkMend && bytes < checkBytes {
			bytes += list[n].size
			n++
		}
		if err := d.mend(ctx, list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// lookUp reads what Redis holds of jobs, or of the first of them if they are large.
func (d *doctor) lookUp(ctx context.Context, ids []string) (r reply, err error) {
	k := *d.keys
	// These keys are optional. If one is of a wrong type, a key of the right type is read in its
	// place, and what it holds is not used.
	for key, other := range map[*string]string{&k.errors: k.attempts, &k.done: k.dead, &k.results: k.attempts} {
		if slices.Contains(d.wrong, *key) {
			*key = other
		}
	}
	err = d.paced(ctx, func(ctx context.Context) (err error) {
		r, err = lookUp(ctx, d.scripts, &k, checkBytes, -1, ids)
		return err
	})
	if err == nil && len(r.list(2)) == 0 {
		err = errReply
	}
	return r, err
}

// winnow removes the IDs in ready or handoff from missing.
func (d *doctor) winnow(ctx context.Context, missing map[string]bool) error {
	if len(missing) == 0 {
		return nil
	}
	d.inReady = d.inReady[:0] // collected again: later findings need fresh IDs
	err := d.walk(ctx, func(id string) {
		delete(missing, id)
		d.inReady = append(d.inReady, maphash.String(d.seed, id))
	})
	slices.Sort(d.inReady)
	return err
}

// diagnose decides where a job belongs from the reply of the get script. It returns nil if the job
// has a place.
func (d *doctor) diagnose(id string, at func(column int) string) *stray {
	raw := at(columnRecord)
	if raw == "" || at(columnLease) != "" || at(columnDead) != "" {
		return nil
	}
	s := &stray{
		id: id, nonce: strings.Clone(raw[:min(len(raw), record.NonceLen)]), attempts: at(columnAttempts), moved: at(columnMoved), size: len(raw),
		found: Finding{Key: d.keys.name(d.keys.pool), ID: id, Kind: FindingNoPlace},
	}
	if score := at(columnBucket); score != "" {
		if due, _ := strconv.ParseFloat(score, 64); due <= maxDueMS { // written by Redis
			return nil
		}
		s.found.Key, s.found.Kind = d.keys.name(d.keys.bucket), FindingBadTime
	}
	rec, err := record.Decode(raw)
	m, moved := record.DecodeMoved(s.moved)
	switch {
	case moved:
		s.due = m.Due
	case errors.Is(err, record.ErrNewer):
		s.due = maxDueMS // only a newer release can decode it
		s.where = "unknown"
		return s
	default:
		s.due = rec.Due() // 0 if it cannot be decoded: the server that takes it buries it
	}
	s.due = min(s.due, maxDueMS)
	s.where = strconv.FormatInt(s.due, 10)
	finished, _ := strconv.Atoi(s.attempts) // "" counts as 0
	var log []AttemptError
	if !slices.Contains(d.wrong, d.keys.errors) {
		log = attemptErrors(at(columnErrors))
	}
	if buried(rec.Options.Retry, err == nil, finished, m, log) {
		s.where = d.keys.name(d.keys.dead)
	}
	return s
}

// buried reports whether the books of a job say that it was dead: it has no retry left, or no
// attempt followed its last failure. A job with unlimited retries that was buried after a lost
// lease cannot be told apart from one that waits.
func buried(retry int, readable bool, finished int, m record.Moved, log []AttemptError) bool {
	if m.Why == string(DueBury) {
		return true // by a client
	}
	if finished <= m.Spent && (m.Revived || m.Spent > 0) {
		return false // revived or snoozed, and no failure since
	}
	if readable && retry >= 0 && finished-m.Spent > retry {
		return true
	}
	if len(log) == 0 {
		return false
	}
	last := log[len(log)-1]
	return last.Kind != KindLeaseLost && last.NextDue.IsZero() && last.Attempt >= finished
}

// mend executes the mend script once.
func (d *doctor) mend(ctx context.Context, list []*stray) error {
	k := d.keys
	args := []any{d.repair, controlChannel(k.prefix()), k.topic}
	known := list[:0:0]
	for _, s := range list {
		if s.where == "unknown" {
			d.note(s.found)
			continue
		}
		known = append(known, s)
		args = append(args, s.id, s.nonce, s.attempts, s.moved, s.where)
	}
	if len(known) == 0 {
		return nil
	}
	var r reply
	err := d.paced(ctx, func(ctx context.Context) (err error) {
		r, err = d.scripts.exec(ctx, mendScript, k, "", len(known), args...)
		return err
	})
	if err != nil {
		return err
	}
	letters := r.text(2)
	for i, s := range known {
		if i < len(letters) && letters[i] == letterMended {
			s.found.Repaired = d.repair == 1
			d.note(s.found)
		}
	}
	return nil
}
