package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/commit"
)

func (s *stored) refuse(reason string) refusal {
	return refusal{s.seq, s.Topic, s.ID, strings.ToValidUTF8(strings.ReplaceAll(reason, "\x00", ""), "\uFFFD")}
}

// mostTopics is how many topics of a plan are sent at the same time.
const mostTopics = 16

// patience is how long Redis may refuse a topic, for example because the user lacks a right, until
// those of its rows are dead that are as old.
const patience = time.Hour

// A delivery is the rows of one topic in a plan, and what has become of them.
type delivery struct {
	topic    string
	rows     []int // indexes in the plan
	outcomes []error
	told     []bool // rows whose outcomes hooks know
	fenced   bool   // no call of an earlier plan can still be carried out
	begun    bool   // a call of this plan was sent, in this try
	lost     string // name of a call that has no answer; empty: none
	err      error
	fate     commit.Fate // of the error
}

// send carries out the plan, all topics at the same time up to mostTopics. If it returns an error,
// the plan goes on.
func (h *holding) send(ctx context.Context) (*ending, error) {
	if h.amiss != "" {
		end := &ending{renamed: h.amiss, open: make(map[int]bool)}
		for i := range h.plan {
			end.open[i] = true
		}
		return end, nil
	}
	ctx, stop := h.keepLease(ctx)
	list := h.deliveries()
	if !h.stuck.IsZero() && h.answers(ctx) != nil { // Redis has gone away for all topics since
		h.stuck = time.Time{}
	}
	var group sync.WaitGroup
	slots := make(chan struct{}, mostTopics)
	waited := time.Since(h.since).Milliseconds() // Redis may have been away
	for _, d := range list {
		if d.outcomes = h.sent[d.topic]; d.outcomes != nil { // in an earlier try
			continue
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			h.deliver(ctx, d, waited)
		})
	}
	group.Wait()
	h.hear(list)
	silent := h.silent(ctx, list)
	if err := stop(); err != nil {
		return nil, err
	}
	if silent != nil {
		return nil, silent
	}
	return h.judge(list, waited)
}

// silent returns an error if Redis has answered about no topic in this try, and does not answer
// anything else. Then the plan goes on, whatever was answered in an earlier try, and the time for
// which topics have been without an answer begins anew: their calls may have been carried out, and
// another plan would make them once more.
func (h *holding) silent(ctx context.Context, list []*delivery) error {
	var away []error
	for _, d := range list {
		switch {
		case d.told == nil: // sent in an earlier try
		case d.err == nil || d.fate != commit.FateAway || errors.Is(d.err, delayq.ErrNotReplicated):
			return nil
		default:
			away = append(away, d.err)
		}
	}
	if len(away) == 0 || h.answers(ctx) == nil {
		return nil
	}
	h.stuck, h.sent = time.Time{}, make(map[string][]error)
	for _, d := range list {
		h.unanswered(d)
		if d.err == nil {
			h.sent[d.topic] = d.outcomes
		}
	}
	return fmt.Errorf("outbox: no answer from Redis, also about %d of %d topics of a plan: %w", len(away), len(list), away[0])
}

// hear notes of which rows hooks have heard, before anything can fail after which the plan is sent
// again.
func (h *holding) hear(list []*delivery) {
	if h.told == nil {
		h.told = make(map[string][]bool)
	}
	for _, d := range list {
		if d.told != nil { // it was sent in this try
			h.told[d.topic] = d.told
		}
	}
}

// deliveries divides the rows of the plan by topic.
func (h *holding) deliveries() []*delivery {
	topics := make(map[string]*delivery)
	var list []*delivery
	for i := range h.plan {
		d := topics[h.plan[i].Topic]
		if d == nil {
			d = &delivery{topic: h.plan[i].Topic}
			topics[d.topic], list = d, append(list, d)
		}
		d.rows = append(d.rows, i)
	}
	return list
}

// deliver sends the rows of a topic.
func (h *holding) deliver(ctx context.Context, d *delivery, waited int64) {
	most := h.o.lease
	if h.aside[d.topic] != nil { // a topic that has failed may not hold up the others again
		most /= 5
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	rows := make([]commit.Row, len(d.rows))
	told := h.told[d.topic]
	for n, i := range d.rows {
		rows[n] = h.plan[i].Row
		rows[n].Age = max(0, rows[n].Age+waited)
		rows[n].Told = told != nil && told[n]
	}
	plan := commit.Plan{Series: h.marker.series(h.series()), Number: uint64(h.number), Tag: tag(h.seal)}
	d.fenced, d.err = h.fence(ctx, d.topic, plan)
	if d.err == nil && !d.fenced && !onlyCancels(rows) {
		d.err = errUnfenced
	}
	if d.begun = d.err == nil; d.begun {
		d.outcomes, d.lost, d.err = library.SendRows(ctx, h.client, plan, rows)
	} else {
		d.outcomes = slices.Repeat([]error{commit.ErrOpen}, len(rows))
	}
	if d.err != nil {
		d.fate = commit.FateOf(d.err)
	}
	if errors.Is(d.err, errUnfenced) {
		d.fate = commit.FateFull
	}
	d.told = make([]bool, len(rows))
	for n := range rows {
		d.told[n] = rows[n].Told || !errors.Is(d.outcomes[n], commit.ErrOpen)
	}
}

// judge decides what the outcomes of the topics are for the plan. An error says that it goes on.
func (h *holding) judge(list []*delivery, waited int64) (*ending, error) {
	var away []error
	works, others, mustWait, grace := false, false, false, h.stuck.IsZero() || time.Since(h.stuck) < h.o.lease
	for _, d := range list {
		h.unanswered(d)
		// The call may have been carried out. A plan that is sent again finds out, so this one is
		// not given up soon, and not at all if a call was carried out for certain: another plan
		// would make it once more.
		awaits := h.awaits(d)
		works = works || d.err == nil || d.fate == commit.FateFull || d.fate == commit.FatePassed
		if awaits || d.fate == commit.FateAway && d.err != nil {
			away = append(away, d.err)
			others = others || h.aside[d.topic] == nil
			mustWait = awaits || mustWait || grace && h.aside[d.topic] == nil
		}
	}
	if h.proven = h.proven || works; works {
		h.failures, h.refused = 0, nil
	}
	if len(away) > 0 && (!works && others || mustWait) { // or those that are known to be away have failed again
		if works && h.stuck.IsZero() {
			h.stuck = time.Now()
		}
		h.sent = make(map[string][]error)
		for _, d := range list {
			if d.err == nil {
				h.sent[d.topic] = d.outcomes
			}
		}
		return nil, fmt.Errorf("%d of %d topics of a plan: %w", len(away), len(list), away[0])
	}
	end := &ending{open: make(map[int]bool), idle: true}
	for _, d := range list {
		h.end(end, d, waited)
	}
	h.complain(end.refused)
	return end, nil
}

// awaits reports whether replicas have not confirmed a call of the plan about the topic. That call
// was carried out for certain, also if Redis does not answer when the plan is sent again, or
// refuses the topic. It is confirmed when rows have outcomes beside those of the calls before it.
func (h *holding) awaits(d *delivery) bool {
	known := 0
	for _, outcome := range d.outcomes {
		if !errors.Is(outcome, commit.ErrOpen) {
			known++
		}
	}
	if d.begun && errors.Is(d.err, delayq.ErrNotReplicated) {
		if h.unconfirmed == nil {
			h.unconfirmed = make(map[string]int)
		}
		h.unconfirmed[d.topic] = known
	}
	before, noted := h.unconfirmed[d.topic]
	return noted && d.err != nil && d.fate != commit.FatePassed && known <= before
}

// end adds the rows of a topic to an ending.
func (h *holding) end(end *ending, d *delivery, waited int64) {
	for n, i := range d.rows {
		row, outcome := &h.plan[i], d.outcomes[n]
		if !errors.Is(outcome, commit.ErrOpen) {
			end.idle = false
			if h.o.drop && errors.Is(outcome, delayq.ErrDuplicate) {
				continue
			}
			if reason := refusedFor(row.Kind, outcome); reason != "" {
				end.refused = append(end.refused, row.refuse(reason))
			}
			continue
		}
		end.err = d.err
		if p := h.aside[d.topic]; d.fate == commit.FateRefused && p != nil && time.Since(p.since) > h.o.patience &&
			row.Age+waited > h.o.patience.Milliseconds() {
			end.refused = append(end.refused, row.refuse(d.err.Error()))
			continue
		}
		end.open[i] = true
	}
	switch {
	case d.err == nil:
		h.resume(d.topic)
	case d.fate == commit.FatePassed:
		end.renamed, end.idle = d.err.Error(), false
	default:
		h.setAside(d.topic, d.err, d.fate == commit.FateFull)
	}
}

// complain logs that rows were refused, in one line.
func (h *holding) complain(refused []refusal) {
	if len(refused) > 0 {
		h.o.logger.Warn("outbox rows refused", "shard", h.shard, "rows", len(refused), "first", refused[0].seq, "err", refused[0].reason)
	}
}

// refusedFor returns why a row goes to the dead rows, or an empty string. A cancel or a reschedule
// that comes too late has nothing to do, unless the cancel was to close the ID and has not.
func refusedFor(kind commit.RowKind, err error) string {
	late := errors.Is(err, delayq.ErrNotFound) || errors.Is(err, delayq.ErrRunning) || errors.Is(err, delayq.ErrDead)
	if err == nil || kind != commit.RowEnqueue && kind != commit.RowFlow && late && !errors.Is(err, delayq.ErrTooManyTombs) {
		return ""
	}
	return err.Error()
}

// keepLease extends the lease while Redis is busy with a plan. If another relay has taken the
// shard, it cuts the calls off, and stop returns an error.
func (h *holding) keepLease(ctx context.Context) (context.Context, func() error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	till := h.till
	group.Go(func() {
		for {
			timer := time.NewTimer(time.Until(till))
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
			short, done := context.WithTimeout(ctx, h.within())
			held, err := h.extend(short, h.db)
			done()
			if err == nil && !held {
				cancel(errOvertaken)
				return
			}
			till = time.Now().Add(h.o.lease / 4) // after an error too: the lease may end
		}
	})
	return ctx, func() error {
		over := context.Cause(ctx)
		cancel(nil)
		group.Wait()
		h.till = till
		return over
	}
}

// failed decides what becomes of the shard after Redis has answered nothing about a plan, or not
// all of it.
func (h *holding) failed(ctx context.Context, err error) (wait time.Duration, _ error) {
	if errors.Is(err, errOvertaken) || ctx.Err() != nil {
		return 0, h.lose(err)
	}
	if !h.stuck.IsZero() { // other topics have answers
		return 0, err
	}
	if h.failures++; h.failures == 1 { // a connection may have been cut
		return 0, err
	}
	return h.giveUp(ctx, err)
}

// giveUp leaves the shard to other relays. If Redis answers to this one, but does not do what it
// asks for, this relay stays away for a lease, so that another one gets the shard.
func (h *holding) giveUp(ctx context.Context, err error) (time.Duration, error) {
	h.release(ctx)
	h.number, h.left = 0, err
	if h.answers(ctx) == nil {
		h.barred = time.Now().Add(h.o.lease)
	}
	return 0, err
}

// A parking is a topic whose rows wait because Redis has refused them, or does not answer about
// this topic alone.
type parking struct {
	since, until time.Time
	wait         time.Duration
	full         bool // for lack of memory: cancels pass
}

const (
	leastAside = time.Second      // how long a topic is set aside for the first time
	mostAside  = 30 * time.Second // … and at most
	mostSkip   = 10_000           // topics that a query leaves out
)

// setAside leaves the rows of a topic for a while, twice as long each time.
func (h *holding) setAside(topic string, err error, full bool) {
	p := h.aside[topic]
	if p == nil {
		h.o.logger.Warn("outbox topic waits", "shard", h.shard, "topic", topic, "err", err)
		p = &parking{since: time.Now()}
		if h.aside == nil {
			h.aside = make(map[string]*parking)
		}
		h.aside[topic] = p
	}
	p.wait = min(max(2*p.wait, leastAside), mostAside)
	p.until, p.full = time.Now().Add(p.wait), full
}

// resume lets the rows of a topic pass.
func (h *holding) resume(topic string) {
	if p := h.aside[topic]; p != nil && !slices.Contains(h.skip, topic) { // or only its cancels were sent
		h.o.logger.Info("outbox topic continues", "shard", h.shard, "topic", topic, "away", time.Since(p.since))
		delete(h.aside, topic)
	}
}

// waiting returns the topics that are set aside.
func (h *holding) waiting() (list []string) {
	now := time.Now()
	for topic, p := range h.aside {
		if now.Before(p.until) {
			list = append(list, topic)
		}
	}
	slices.Sort(list)
	return list[:min(len(list), mostSkip)]
}

// rest returns how long to wait while there is nothing to do.
func (h *holding) rest() time.Duration {
	wait := h.o.poll
	for _, p := range h.aside {
		wait = min(wait, max(time.Until(p.until), time.Millisecond))
	}
	return wait
}

// can returns a condition for rows of topics that are not set aside, and its arguments.
func (h *holding) can() (condition string, topics []any) {
	if len(h.skip) == 0 {
		return "", nil
	}
	return " AND topic NOT IN (" + marks(len(h.skip)) + ")", values(h.skip)
}

// marks returns placeholders for a list of values.
func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }

func values(list []string) []any {
	all := make([]any, len(list))
	for i := range list {
		all[i] = list[i]
	}
	return all
}
