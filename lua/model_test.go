package lua_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/settle"
)

// The model is the queue as a few maps and slices: what the scripts in lua/ are meant to do,
// without Redis. A player makes the same random calls on both and compares all they hold.

type place string

const (
	inReady  place = "ready" // or in handoff, or between the two
	inBucket place = "bucket"
	inLeases place = "leases"
	inDead   place = "dead"
)

type modelJob struct {
	record   string
	keep     int64 // Retention, ms
	in       place
	score    int64 // due time, lease end or time of burial
	lease    int   // which lease it is: all that were ever given are numbered
	attempts int
	log      []string // attempt and kind
	moved    string
	expires  int64 // 0: never
	revived  bool  // then it does not expire
}

type model struct {
	us             int64 // Redis's clock
	jobs           map[string]*modelJob
	ready, handoff []string // with left-overs
	done           map[string]doneJob
	stats          map[delayq.Counter]int64
	pauses         map[string]int64 // by whom → until when, ms; 0: without an end
	leases         int              // given so far
}

type doneJob struct {
	record string
	until  int64
}

func newModel(us int64) *model {
	return &model{us: us, jobs: map[string]*modelJob{}, done: map[string]doneJob{}, stats: map[delayq.Counter]int64{}, pauses: map[string]int64{}}
}

func (m *model) now() int64 { return m.us / 1000 }

// due reads a due time as the scripts do.
func (m *model) due(when string) int64 {
	ms, _ := strconv.ParseInt(strings.TrimPrefix(when, "+"), 10, 64)
	if when[0] == '+' {
		return m.now() + ms
	}
	return max(ms, m.now())
}

// place puts a job where its due time wants it.
func (m *model) place(id string, j *modelJob, due int64) {
	if due > m.now() {
		j.in, j.score = inBucket, due
		return
	}
	j.in = inReady
	m.ready = append(m.ready, id)
}

// sorted lists the jobs of a zset by score.
func (m *model) sorted(where place) (ids []string) {
	for id, j := range m.jobs {
		if j.in == where {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int {
		if x, y := m.jobs[a].score, m.jobs[b].score; x != y {
			return int(x - y)
		}
		return strings.Compare(a, b)
	})
	return ids
}

// enqueue stores one job and gives its letter.
func (m *model) enqueue(id, when, record string, keep int64) string {
	when, till, _ := strings.Cut(when, " ")
	replace, when := commit.Replacing(strings.TrimRight(when, "+0123456789")), strings.TrimLeft(when, "rd")
	state := m.state(id)
	j := &modelJob{record: record, keep: keep}
	due := m.due(when)
	if till != "" {
		j.expires = m.now() + int64(atoi(strings.TrimPrefix(till, "+")))
		if till[0] != '+' {
			j.expires = int64(atoi(till))
		}
	}
	switch {
	case j.expires > 0 && due >= j.expires:
		return "x"
	case state != "none" && replace != commit.ReplaceAny && (replace != commit.ReplaceDead || state != "dead"):
		return map[string]string{"scheduled": "s", "ready": "r", "running": "u", "dead": "d"}[state]
	}
	m.jobs[id] = j
	m.stats["enqueued"]++
	switch {
	case state == "ready" && due <= m.now() && len(m.ready)+len(m.handoff) > 0:
		j.in = inReady // where the old one was
		return "n"
	case state == "ready" && due > m.now():
		m.unready(id)
	}
	m.place(id, j, due)
	return "n"
}

// unready removes an ID from ready, if it is near one of its ends.
func (m *model) unready(id string) {
	if at := slices.Index(m.ready, id); at >= 0 && at < 1000 {
		m.ready = slices.Delete(slices.Clone(m.ready), at, at+1)
	}
}

// state is what the scripts call the state of a job.
func (m *model) state(id string) string {
	j := m.jobs[id]
	if j == nil {
		return "none"
	}
	return map[place]string{inReady: "ready", inBucket: "scheduled", inLeases: "running", inDead: "dead"}[j.in]
}

func (m *model) cancel(id string) string {
	state := m.state(id)
	if state != "none" {
		delete(m.jobs, id)
		m.stats["cancelled"]++
	}
	if state == "ready" {
		m.unready(id)
	}
	return state
}

func (m *model) reschedule(id, when string) string {
	state, j := m.state(id), m.jobs[id]
	if state != "scheduled" && state != "ready" {
		return state
	}
	due := m.due(when)
	if j.expires > 0 && !j.revived && due >= j.expires {
		return "beyond"
	}
	j.move(due, j.traced("reschedule", m.now()))
	switch {
	case due > m.now():
		if state == "ready" {
			m.unready(id)
		}
		j.in, j.score = inBucket, due
	case j.in == inBucket:
		m.place(id, j, due)
	}
	return state
}

// past is the spent, the snoozes and the revived of a job.
func (j *modelJob) past() (spent, snoozes, revived int) {
	if j.moved != "" {
		field := strings.Fields(j.moved)
		spent, snoozes, revived = atoi(field[2]), atoi(field[3]), atoi(field[4])
	}
	return spent, snoozes, revived
}

// move gives a job another due time and carries the rest over.
func (j *modelJob) move(due int64, why string) {
	spent, snoozes, revived := j.past()
	j.moved = fmt.Sprint(due, " ", why, " ", spent, " ", snoozes, " ", revived)
}

// traced is the word of a new entry in moved: see lua/prelude/trace.lua.
func (j *modelJob) traced(why string, now int64) string {
	if j.moved == "" {
		return why
	}
	_, last, _ := strings.Cut(strings.Fields(j.moved)[1], ".")
	before, _ := strconv.ParseInt(last, 10, 64) // "" is 0
	return why + "." + strconv.FormatInt(max(now, before+1), 10)
}

// touch leaves a trace of an edit that keeps the due time.
func (j *modelJob) touch(now int64) {
	rec, _ := record.Decode(j.record)
	due, why := rec.Due(), "same"
	if m, ok := record.DecodeMoved(j.moved); ok {
		due, why = m.Due, m.Why
	}
	j.move(due, j.traced(why, now))
}

// as reports whether a job is as a caller knows it: see lua/prelude/expect.lua.
func (m *model) as(id, known string) bool {
	state, j := hand.LetterOf(m.state(id)), m.jobs[id]
	return known == "" || known == state || state != "g" && known == state+strconv.FormatInt(j.score, 10)
}

// bury moves a scheduled or ready job to dead, and gives the state it was in.
func (m *model) bury(id string) string {
	state, j := m.state(id), m.jobs[id]
	if state != "scheduled" && state != "ready" {
		return state
	}
	due := m.now()
	switch {
	case state == "scheduled":
		due = j.score
	case j.moved != "":
		due = int64(atoi(strings.Fields(j.moved)[0]))
	}
	j.move(due, j.traced("bury", m.now()))
	if state == "ready" {
		m.unready(id)
	}
	j.fail(j.attempts+1, delayq.KindBuried)
	j.in, j.score = inDead, m.now()
	m.stats["buried"]++
	return state
}

func (m *model) revive(id, when string) string {
	j := m.jobs[id]
	if j == nil || j.in != inDead {
		return "none"
	}
	j.revived = true
	_, snoozes, _ := j.past()
	due := m.due(when)
	j.moved = fmt.Sprint(due, " ", j.traced("revive", m.now()), " ", j.attempts, " ", snoozes, " 1")
	m.place(id, j, due)
	m.stats["revived"]++
	return "dead"
}

func (j *modelJob) fail(attempt int, kind delayq.ErrorKind) {
	if len(j.log) > 10 {
		j.log = slices.Delete(j.log, 1, 2)
	}
	j.log = append(j.log, fmt.Sprint(attempt, " ", kind))
}

func (m *model) promote(limit int, heal bool) (moved, reclaimed int) {
	var back []string // for the first time
	later := int64(0)
	lapsed, due := m.upTo(inLeases, m.now(), limit), m.upTo(inBucket, m.now(), limit)
	for _, id := range lapsed {
		j := m.jobs[id]
		j.attempts++
		j.fail(j.attempts, delayq.KindLeaseLost)
		if j.attempts == 1 {
			j.in = inReady
			back = append(back, id)
			continue
		}
		spent, _, _ := j.past()
		step := int64(1000) << max(1, min(j.attempts-1-spent, 6))
		j.in, j.score = inBucket, m.now()+step+step*(37*later%200)/1000
		j.move(j.score, "retry")
		later++
	}
	m.ready = append(back, m.ready...)
	for _, id := range due {
		m.place(id, m.jobs[id], 0)
	}
	if heal {
		at := max(0, len(m.handoff)-limit)
		m.ready = append(slices.Clone(m.handoff[at:]), m.ready...)
		m.handoff = m.handoff[:at]
	}
	m.stats["reclaimed"] += int64(len(lapsed))
	return len(due), len(lapsed)
}

// upTo lists at most limit jobs whose score is at most most.
func (m *model) upTo(where place, most int64, limit int) (ids []string) {
	for _, id := range m.sorted(where) {
		if len(ids) < limit && m.jobs[id].score <= most {
			ids = append(ids, id)
		}
	}
	return ids
}

// wait is the time to the next due time or lease end in µs, -1 for none.
func (m *model) wait() int64 {
	wait := int64(-1)
	for _, j := range m.jobs {
		if j.in == inBucket || j.in == inLeases {
			if left := max(0, j.score*1000-m.us); wait < 0 || left < wait {
				wait = left
			}
		}
	}
	return wait
}

// paused lists whose pauses last, sorted.
func (m *model) paused() (by []string) {
	for who, until := range m.pauses {
		if until == 0 || m.now() < until {
			by = append(by, who)
		}
	}
	slices.Sort(by)
	return by
}

// pause makes or ends pauses, and gives how the topic is then.
func (m *model) pause(verb, by string, period int64) string {
	switch {
	case verb == "resume all":
		clear(m.pauses)
	case verb == "resume":
		delete(m.pauses, by)
	case period > 0:
		m.pauses[by] = m.now() + period
	default:
		m.pauses[by] = 0
	}
	if len(m.paused()) > 0 {
		return "paused"
	}
	return "running"
}

// take gives status, IDs and the number of the first lease.
func (m *model) take(limit int, lease int64) (status string, ids []string) {
	if len(m.paused()) > 0 {
		return "paused", nil
	}
	status = "empty"
	for len(ids) < limit && len(m.handoff)+len(m.ready) > 0 {
		status = "ok"
		var id string
		if len(m.handoff) > 0 {
			id, m.handoff = m.handoff[0], m.handoff[1:]
		} else {
			id, m.ready = m.ready[0], m.ready[1:]
		}
		if j := m.jobs[id]; j != nil && j.in == inReady {
			m.leases++
			j.in, j.score, j.lease = inLeases, m.now()+lease, m.leases
			ids = append(ids, id)
		}
	}
	m.stats["taken"] += int64(len(ids))
	return status, ids
}

// retake is a take after one without an answer, of whose jobs those are left: some get a lease from
// anew, and the others go back.
func (m *model) retake(left []string, limit int, lease int64) (kept []string) {
	kept = left[:min(limit, len(left))]
	for _, id := range kept {
		m.leases++
		m.jobs[id].score, m.jobs[id].lease = m.now()+lease, m.leases
	}
	for _, id := range left[len(kept):] {
		m.jobs[id].in = inReady
		m.stats["returned"]++
	}
	m.giveBack(left[len(kept):])
	return kept
}

// settle ends the lease of a job, if it is that lease, and gives its letter.
func (m *model) settle(id string, lease int, verb settle.Verb, delay int64) string {
	j := m.jobs[id]
	switch {
	case j == nil:
		return "g"
	case j.in != inLeases || j.lease != lease:
		return "l"
	}
	m.stats[delayq.Counter(verb.Outcome())]++
	switch verb {
	case settle.Ack, settle.Expire:
		if verb == settle.Ack && j.keep > 0 {
			m.done[id] = doneJob{j.record, m.now() + j.keep}
		}
		delete(m.jobs, id)
	case settle.Again:
		m.stats["acked"]++
		if j.keep > 0 {
			m.done[id] = doneJob{j.record, m.now() + j.keep}
		}
		delete(m.jobs, id)
	case settle.Retry:
		j.move(m.now()+delay, "retry")
		j.attempts++
		j.fail(j.attempts, delayq.KindError)
		j.in, j.score = inBucket, m.now()+delay
	case settle.Snooze:
		_, snoozes, revived := j.past()
		j.moved = fmt.Sprint(m.now()+delay, " snooze ", j.attempts, " ", snoozes+1, " ", revived)
		j.in, j.score = inBucket, m.now()+delay
	case settle.Bury:
		j.attempts++
		j.fail(j.attempts, delayq.KindError)
		j.in, j.score = inDead, m.now()
	case settle.Return:
		j.in = inReady
		j.touch(m.now())
	}
	return "o"
}

// giveBack puts returned jobs to the head of ready, in their order.
func (m *model) giveBack(ids []string) { m.ready = append(slices.Clone(ids), m.ready...) }

func (m *model) extend(id string, lease int, ending int64) string {
	j := m.jobs[id]
	switch {
	case j == nil:
		return "g"
	case j.in != inLeases || j.lease != lease:
		return "l"
	}
	j.score = ending
	return "o"
}

func (m *model) prune(most int, age int64, limit int) (dead, done int) {
	old := m.upTo(inDead, m.now()-age, limit)
	if dead := m.sorted(inDead); len(old) == 0 && len(dead) > most {
		old = dead[:min(len(dead)-most, limit)]
	}
	for _, id := range old {
		delete(m.jobs, id)
	}
	for _, id := range slices.SortedFunc(maps.Keys(m.done), func(a, b string) int {
		if x, y := m.done[a].until, m.done[b].until; x != y {
			return int(x - y)
		}
		return strings.Compare(a, b)
	}) {
		if done < limit && m.done[id].until <= m.now() {
			delete(m.done, id)
			done++
		}
	}
	m.stats["pruned_dead"] += int64(len(old))
	m.stats["pruned_done"] += int64(done)
	return len(old), done
}
