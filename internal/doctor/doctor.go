package doctor

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
	"github.com/delayq/delayq/internal/script"
)

const (
	SliceBytes   = 256 << 10             // about how many bytes of records and books one call reads
	SliceWork    = 1000                  // about how much work one call does, in simple commands
	WalkLimit    = walkShare * SliceWork // how many IDs of ready one call reads, if they are short
	walkShare    = 4                     // IDs of ready that are as much work as a simple command
	mostStrays   = 10_000                // how many jobs without a place are resolved together
	mendLimit    = 100                   // maximum number of jobs that one call repairs
	mostFindings = 1000                  // maximum number of findings in a report
)

// A Finding is one inconsistency of a topic. delayq.Finding describes its fields.
type Finding struct {
	Key, ID string
	Kind    string
	Mended  bool
	Place   string // partition that has it; empty: the topic itself
}

// The kinds of findings that the doctor itself decides about. The check script has more.
const (
	kindNoPlace   = "no_place"
	kindNoLane    = "no_lane"
	kindBadTime   = "bad_time"
	kindWrongType = "wrong_type"
)

// A Report is the result of a check. It lists the first mostFindings findings, and counts all.
type Report struct {
	Jobs     int64 // records that were examined
	Findings []Finding
	Found    map[string]int // by kind
	Mended   int
}

// A Doctor checks one topic.
//
// The hard part is a record in neither bucket nor leases nor dead. It should be in ready, but a
// list cannot be searched for a member. So ready is read once before the pool is scanned. IDs that
// the scan finds in no place, and that were not in ready, may have arrived there since.
//
// So ready is read again, from its tail to its head. Jobs leave at the head only, so one that
// stays is never overlooked. IDs that are not in it are looked up, and ready is read once more.
// The mend script has the last word: it rejects a job that has moved to ready in the meantime,
// because its state has changed since it was read. The script itself searches both ends of ready.
type Doctor struct {
	Scripts script.Caller
	rdb     redis.Cmdable
	keys    *script.Keys
	repair  int
	Timeout time.Duration                                       // of a call; 0: that of rdb
	Pause   func(ctx context.Context, took time.Duration) error // between two calls
	// Known reports whether an earlier check of keys with these sizes has found nothing. Nil: not
	// asked.
	Known  func(ctx context.Context, sizes []int64) bool
	Report Report

	seed       maphash.Seed
	inReady    []uint64 // sorted hashes of the IDs in ready and handoff
	inLane     []uint64 // sorted hashes of the IDs in lane whose places are not in keyed
	WrongTypes []string // keys of a wrong type
	strays     []string // IDs that have no place, as far as known
	late       []string // IDs with an impossible time in the bucket
}

// New returns a doctor for a topic, which with repair also mends what it finds.
func New(scripts script.Caller, rdb redis.Cmdable, k *script.Keys, repair bool) *Doctor {
	d := &Doctor{
		Scripts: scripts, rdb: rdb, keys: k, Report: Report{Found: make(map[string]int)}, seed: maphash.MakeSeed(),
		Pause: func(ctx context.Context, _ time.Duration) error { return context.Cause(ctx) },
	}
	if repair {
		d.repair = 1
	}
	return d
}

// Check checks the topic once.
func (d *Doctor) Check(ctx context.Context) error {
	_, sizes, err := d.slice(ctx, "all", "0", SliceWork)
	if err != nil {
		return err
	}
	if d.Known != nil && len(d.Report.Found) == 0 && slices.Max(sizes) > 0 && d.Known(ctx, sizes) {
		return nil
	}
	lists := sizes[len(d.keys.Checked()):]
	if slices.Max(lists) > 0 && d.sound(d.keys.Pool) {
		if err := d.walk(ctx, func(id string) { d.inReady = append(d.inReady, maphash.String(d.seed, id)) }); err != nil {
			return err
		}
		slices.Sort(d.inReady)
	}
	for i, key := range d.keys.Checked() {
		if sizes[i] <= 0 || !d.sound(key) {
			continue
		}
		for cursor := "0"; ; {
			if cursor, _, err = d.slice(ctx, d.keys.Name(key), cursor, SliceWork); err != nil {
				return err
			}
			if len(d.strays)+len(d.late) >= mostStrays || cursor == "0" {
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
func (d *Doctor) sound(key string) bool {
	k := d.keys
	needs := []string{k.Pool, k.Leases}
	switch key {
	case k.Pool, k.Bucket: // findings there are looked up and repaired
		needs = append(needs, k.Bucket, k.Dead, k.Ready, k.Handoff, k.Attempts, k.Moved, k.Turn, k.Lane, k.Keyed, k.Meta, k.Blockers)
	case k.Lane:
		needs = append(needs, k.Bucket, k.Dead, k.Turn, k.Keyed, k.Held, k.Parked)
	case k.Keyed:
		needs = append(needs, k.Lane)
	case k.Turn, k.Rates:
		needs = nil
	case k.Blockers:
		needs = append(needs, k.Keyed, k.Bucket, k.Dead, k.Parked, k.Turn, k.Lane, k.Ready)
	case k.Rules:
		needs = []string{k.Meta}
	case k.Holders:
		needs = append(needs, k.Keyed)
	case k.Held, k.Parked:
		needs = []string{k.Turn, k.Lane, k.Leases, k.Rates, k.Rules, k.Meta}
	case k.Done, k.Results:
		needs = []string{k.Done, k.Results}
	case k.Schedules:
		needs = []string{k.Slots, k.Waiting, k.Fired}
	case k.Slots, k.Waiting, k.Fired, k.Runs:
		needs = []string{k.Schedules}
	}
	return !slices.ContainsFunc(append(needs, key), func(name string) bool { return slices.Contains(d.WrongTypes, name) })
}

// Paced makes a call and then pauses.
func (d *Doctor) Paced(ctx context.Context, call func(ctx context.Context) error) error {
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if d.Timeout > 0 {
		bounded, cancel = context.WithTimeout(ctx, d.Timeout)
	}
	defer cancel()
	began := time.Now()
	if err := call(bounded); err != nil {
		return err
	}
	return d.Pause(ctx, time.Since(began))
}

// ask executes the check script once.
func (d *Doctor) ask(ctx context.Context, jobs int, args ...any) (r script.Reply, err error) {
	err = d.Paced(ctx, func(ctx context.Context) (err error) {
		r, err = d.Scripts.Exec(ctx, script.Check, d.keys, "", jobs, args...)
		return err
	})
	return r, err
}

// slice scans a part of the topic.
func (d *Doctor) slice(ctx context.Context, part, cursor string, limit int) (next string, sizes []int64, err error) {
	k := d.keys
	r, err := d.ask(ctx, limit, part, cursor, limit, SliceBytes, d.repair)
	if err != nil {
		return "", nil, err
	}
	if part == k.Name(k.Pool) {
		d.Report.Jobs += r.Number(3)
	}
	for i := range r.List(4) {
		found := Finding{Key: r.List(4).Text(i), ID: r.List(5).Text(i), Kind: r.List(6).Text(i), Mended: r.List(7).Number(i) == 1}
		switch {
		case found.Kind == kindWrongType:
			d.WrongTypes = append(d.WrongTypes, found.Key)
			found.Key = k.Name(found.Key)
			d.note(found)
		case found.Kind == kindBadTime && found.Key == k.Name(k.Bucket):
			d.late = append(d.late, found.ID)
		default:
			if found.Kind == kindNoLane {
				d.inLane = append(d.inLane, maphash.String(d.seed, found.ID))
			}
			d.note(found)
		}
	}
	slices.Sort(d.inLane)
	for i, nowhere := 0, r.List(9); i < len(nowhere); i++ {
		id := nowhere.Text(i)
		hash := maphash.String(d.seed, id)
		_, waits := slices.BinarySearch(d.inReady, hash)
		if _, laned := slices.BinarySearch(d.inLane, hash); !waits && !laned {
			d.strays = append(d.strays, id)
		}
	}
	for i := range r.List(8) {
		sizes = append(sizes, r.List(8).Number(i))
	}
	if part == "all" && len(sizes) != len(k.Checked())+2 {
		return "", nil, script.ErrReply
	}
	return r.Text(2), sizes, nil
}

func (d *Doctor) note(found Finding) {
	d.Report.Found[found.Kind]++
	if found.Mended {
		d.Report.Mended++
	}
	if len(d.Report.Findings) < mostFindings {
		d.Report.Findings = append(d.Report.Findings, found)
	}
}

// ErrGrowing is returned when a check cannot finish.
var ErrGrowing = errors.New("ready grows faster than it can be read")

// walk reads ready from its tail to its head, and then handoff.
func (d *Doctor) walk(ctx context.Context, see func(id string)) error {
	if err := d.walkList(ctx, d.keys.Ready, see); err != nil {
		return err
	}
	return d.walkList(ctx, d.keys.Handoff, see)
}

// walkList reads a list from its tail to its head. Jobs pushed in the meantime make the walk
// longer, so it has a limit.
func (d *Doctor) walkList(ctx context.Context, key string, see func(id string)) error {
	for passed, most := int64(0), int64(0); ; {
		r, err := d.ask(ctx, WalkLimit, d.keys.Name(key), passed, WalkLimit/walkShare, SliceBytes, 0)
		if err != nil {
			return err
		}
		for i := range r.List(5) {
			for _, id := range r.List(5).List(i).Texts() {
				see(id)
				passed++
			}
		}
		most = cmp.Or(most, 4*r.List(8).Number(0)+20*WalkLimit)
		switch {
		case r.Text(2) == "0":
			return nil
		case passed > most:
			return ErrGrowing
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
func (d *Doctor) resolve(ctx context.Context) error {
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
		some := ids[:min(len(ids), mendLimit)]
		r, err := d.lookUp(ctx, some)
		if err != nil {
			return err
		}
		n := min(len(r.List(2)), len(some))
		for i, id := range some[:n] {
			if s := d.diagnose(id, func(column int) string { return r.List(2 + column).Text(i) }); s != nil {
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
	list = slices.DeleteFunc(list, func(s *stray) bool { return s.found.Kind == kindNoPlace && !missing[s.id] })
	slices.SortFunc(list, func(a, b *stray) int { return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.id, b.id)) })
	for len(list) > 0 {
		n, bytes := 0, 0
		for n < len(list) && n < mendLimit && bytes < SliceBytes {
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
func (d *Doctor) lookUp(ctx context.Context, ids []string) (r script.Reply, err error) {
	k := *d.keys
	// These keys are optional. If one is of a wrong type, a key of the right type is read in its
	// place, and what it holds is not used.
	for key, other := range map[*string]string{&k.Errors: k.Attempts, &k.Done: k.Dead, &k.Results: k.Attempts} {
		if slices.Contains(d.WrongTypes, *key) {
			*key = other
		}
	}
	err = d.Paced(ctx, func(ctx context.Context) (err error) {
		r, err = script.LookUp(ctx, d.Scripts, &k, SliceBytes, -1, ids)
		return err
	})
	if err == nil && len(r.List(2)) == 0 {
		err = script.ErrReply
	}
	return r, err
}

// winnow removes the IDs in ready or handoff from missing.
func (d *Doctor) winnow(ctx context.Context, missing map[string]bool) error {
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
func (d *Doctor) diagnose(id string, at func(column int) string) *stray {
	raw := at(script.ColumnRecord)
	if raw == "" || at(script.ColumnLease) != "" || at(script.ColumnDead) != "" {
		return nil
	}
	s := &stray{
		id: id, nonce: strings.Clone(raw[:min(len(raw), record.NonceLen)]), attempts: at(script.ColumnAttempts), moved: at(script.ColumnMoved), size: len(raw),
		found: Finding{Key: d.keys.Name(d.keys.Pool), ID: id, Kind: kindNoPlace},
	}
	if score := at(script.ColumnBucket); score != "" {
		if due, _ := strconv.ParseFloat(score, 64); due <= record.MaxTime { // written by Redis
			return nil
		}
		s.found.Key, s.found.Kind = d.keys.Name(d.keys.Bucket), kindBadTime
	}
	rec, err := record.Decode(raw)
	m, moved := record.DecodeMoved(s.moved)
	switch {
	case moved:
		s.due = m.Due
	case errors.Is(err, record.ErrNewer):
		s.due = record.MaxTime // only a newer release can decode it
		s.where = "unknown"
		return s
	default:
		s.due = rec.Due() // 0 if it cannot be decoded: the server that takes it buries it
	}
	s.due = min(s.due, record.MaxTime)
	s.where = strconv.FormatInt(s.due, 10)
	finished, _ := strconv.Atoi(s.attempts) // "" counts as 0
	var log []record.Failure
	if !slices.Contains(d.WrongTypes, d.keys.Errors) {
		log = record.DecodeFailures(at(script.ColumnErrors))
	}
	if buried(rec.Options.Retry, err == nil, finished, m, log) {
		s.where = d.keys.Name(d.keys.Dead)
	}
	return s
}

// buried reports whether the books of a job say that it was dead: it has no retry left, or no
// attempt followed its last failure. A job with unlimited retries that was buried after a lost
// lease cannot be told apart from one that waits.
func buried(retry int, readable bool, finished int, m record.Moved, log []record.Failure) bool {
	if m.Why == record.WhyBury {
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
	return last.Kind != record.KindLeaseLost && last.NextDue == 0 && last.Attempt >= finished
}

// mend executes the mend script once.
func (d *Doctor) mend(ctx context.Context, list []*stray) error {
	k := d.keys
	args := []any{d.repair, script.ControlChannel(k.Prefix()), k.Topic}
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
	var r script.Reply
	err := d.Paced(ctx, func(ctx context.Context) (err error) {
		r, err = d.Scripts.Exec(ctx, script.Mend, k, "", len(known), args...)
		return err
	})
	if err != nil {
		return err
	}
	letters := r.Text(2)
	for i, s := range known {
		if i < len(letters) && letters[i] == script.LetterMended {
			s.found.Mended = d.repair == 1
			d.note(s.found)
		}
	}
	return nil
}
