package delayq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A NewSchedule is a schedule of [Client.ScheduleBatch]. Its fields are the arguments of
// [Client.Schedule].
type NewSchedule struct {
	Topic, Name string
	Spec        Spec
	Payload     []byte
	Options     []ScheduleOption
}

// A ScheduleResult is the outcome of one schedule of a [Client.ScheduleBatch] call.
type ScheduleResult struct {
	Changed bool // it was created or replaced; false if Err is not nil
	Err     error
}

// ScheduleBatch creates or replaces any number of schedules of any topics, as [Client.Schedule]
// does one. Results are in the order of schedules. Each has its own error, as from Schedule. A
// schedule that the batch names twice is an [ErrInvalid] the second time. The returned error is
// non-nil if any schedule failed, and joins the first ten failures. [ErrorsExcept] leaves out those
// that are fine.
//
// Schedules of one topic are sent in their order, up to 150 and about 1 MiB of definitions in a
// call. Each is set atomically; the batch as a whole is not. A schedule that exists and does not
// change takes no other call. One that changes takes two more, because its edits are read. When ctx
// is done, schedules not yet sent get its error. After a call that Redis does not answer, no other
// is sent: the schedules of that call have [ErrUnknownOutcome], and later ones another error,
// because they are unchanged. The batch can then be repeated.
//
// Cost: O(log(schedules of the topic)) for each schedule. ScheduleBatch holds about 1 KiB for each
// until it returns, the definitions of one call, and the existing ones of up to 300 that change.
func (c *Client) ScheduleBatch(ctx context.Context, schedules []NewSchedule) ([]ScheduleResult, error) {
	topic := func(i int) string { return schedules[i].Topic }
	ctx, end := c.beginBatch(ctx, "schedule batch", len(schedules), topic)
	b := &scheduleBatch{client: c, ctx: ctx, given: schedules, results: make([]ScheduleResult, len(schedules))}
	b.prepare()
	for _, one := range b.topics {
		b.send(one, b.settings[one])
	}
	return b.results, end.err(b.record(b.err()))
}

// settingsMost is the most schedules of one call. Redis spends about 12 µs on each, and the other
// clients wait for the call.
const settingsMost = 150

// changesMost is the most schedules whose existing definitions are held in memory: these fill whole
// calls that read and that set.
const changesMost = 2 * settingsMost

// A scheduleBatch is one ScheduleBatch.
type scheduleBatch struct {
	client   *Client
	ctx      context.Context
	given    []NewSchedule
	results  []ScheduleResult
	topics   []string // in the order in which they come first
	settings map[string][]*setting
	silent   error // why nothing more is sent; nil: it is

	now, was strings.Builder // for the audit: what was set, and what was there before
}

// A setting is a schedule that is to be set.
type setting struct {
	i        int // its index in the batch
	given    *definition
	existing revision // without to: what was read. Otherwise there is taken to be nothing
	bad      error    // why existing.old is nil
	read     bool
	to       *definition // what is sent
}

// prepare checks the arguments.
func (b *scheduleBatch) prepare() {
	b.settings = make(map[string][]*setting)
	seen := make(map[[2]string]int, len(b.given))
	for i, one := range b.given {
		d, err := b.client.definitionOf(b.ctx, one.Topic, one.Name, one.Spec, one.Payload, one.Options)
		name := [2]string{one.Topic, one.Name}
		if before, twice := seen[name]; twice && err == nil {
			err = fmt.Errorf("%w: schedule %d of the batch is the same one", ErrInvalid, before)
		}
		if err != nil {
			b.fail(i, fmt.Errorf("schedule %d of the batch: %w", i, err))
			continue
		}
		seen[name] = i
		if b.settings[one.Topic] == nil {
			b.topics = append(b.topics, one.Topic)
		}
		b.settings[one.Topic] = append(b.settings[one.Topic], &setting{i: i, given: d})
	}
}

func (b *scheduleBatch) fail(i int, err error) {
	place := script.Place{Call: "schedule", Topic: b.given[i].Topic, Schedule: b.given[i].Name}
	b.results[i] = ScheduleResult{Err: place.At(err)}
}

func (b *scheduleBatch) failAll(list []*setting, err error) {
	for _, s := range list {
		b.fail(s.i, err)
	}
}

// send sets the schedules of a topic.
func (b *scheduleBatch) send(topic string, list []*setting) {
	g := b.client.commits.For(topic, commit.Enqueue)
	defer g.Release()
	if err := b.stopped(); err != nil {
		b.failAll(list, err)
		return
	}
	if err := g.Announce(b.ctx); err != nil {
		b.lost(err)
		b.failAll(list, err)
		return
	}
	r := &topicBatch{scheduleBatch: b, keys: script.NewKeys(b.client.o.prefix, topic)}
	if len(r.read(list[:1], 0)) == 0 { // for Redis's clock
		b.failAll(list[1:], b.results[list[0].i].Err)
		return
	}
	again := r.round(list)
	for some := range slices.Chunk(again, changesMost) {
		r.settle(some)
	}
	if r.stored {
		g.Confirm(b.ctx) // as announced does
	}
}

// settle reads and sends schedules until all are set.
func (t *topicBatch) settle(list []*setting) {
	rest := list
	for range defineTries {
		if rest = t.round(t.read(rest, -1)); len(rest) == 0 {
			break
		}
	}
	t.failAll(rest, errChanging)
	for _, s := range list { // they can be large
		s.existing, s.to = revision{}, nil
	}
}

// stopped returns why nothing more is sent.
func (b *scheduleBatch) stopped() error {
	if cause := context.Cause(b.ctx); cause != nil {
		return cause
	}
	return b.silent
}

// lost notes that a call has failed. If Redis did not answer, others would wait as long.
func (b *scheduleBatch) lost(err error) {
	if script.Away(err) {
		b.silent = fmt.Errorf("not sent, because Redis did not answer an earlier call: %w", err)
	}
}

// A topicBatch is the part of a scheduleBatch about one topic.
type topicBatch struct {
	*scheduleBatch
	keys   *script.Keys
	clock  int64 // of Redis, by the last reply
	stored bool  // something is, or may be
}

// read reads the existing definitions of schedules, at most size bytes of each, and returns those
// that it has read; -1: all. Without them it reads only Redis's clock.
func (t *topicBatch) read(list []*setting, size int) (done []*setting) {
	for len(list) > 0 {
		if err := t.stopped(); err != nil {
			t.failAll(list, err)
			break
		}
		some := list[:min(len(list), schedulesPage)]
		names := make([]string, len(some))
		for i, s := range some {
			names[i] = t.given[s.i].Name
		}
		r, err := readSchedules(t.ctx, t.client.scripts, t.keys, size, names...)
		covered := min(len(r.List(2)), len(some))
		if err == nil && covered == 0 {
			err = script.ErrReply
		}
		if err != nil {
			t.lost(err)
			t.failAll(list, err)
			break
		}
		t.clock = r.Now()
		for i, s := range some[:covered] {
			s.read = size < 0
			s.existing, s.bad = revision{}, ErrNotFound
			if raw := r.List(2).Text(i); raw != "" && s.read {
				s.existing.raw = raw
				s.existing.old, s.bad = decodeDefinition(raw)
			}
		}
		done, list = append(done, some[:covered]...), list[covered:]
	}
	return done
}

// round sends each schedule once, and returns those that must be read and sent again: another
// client has changed them, or they were not read yet and are there.
func (t *topicBatch) round(list []*setting) (again []*setting) {
	for len(list) > 0 {
		if err := t.stopped(); err != nil {
			t.failAll(list, err)
			break
		}
		sent, args, n := t.pack(list)
		list = list[n:]
		if len(sent) == 0 {
			continue
		}
		words, now, err := t.client.setSchedules(t.ctx, t.keys, len(sent), args)
		if err != nil {
			t.lost(err)
			err = t.client.unsure(err)
			t.stored = t.stored || errors.Is(err, ErrUnknownOutcome)
			t.failAll(sent, err)
			continue
		}
		t.clock = now
		var later []*setting
		for i, s := range sent {
			switch words[i] {
			case "changed":
				again = append(again, s)
			case "later":
				later = append(later, s)
			case "same":
			default:
				t.stored, t.results[s.i].Changed = true, true
				t.note(s)
			}
		}
		list = append(later, list...)
	}
	return again
}

// pack returns the arguments of a call for the first schedules of list, and how many these are.
// Those that need not change are not sent.
func (t *topicBatch) pack(list []*setting) (sent []*setting, args []any, n int) {
	size := 0
	for n < len(list) && len(sent) < settingsMost && size < script.CallBytes {
		s := list[n]
		n++
		text, slot, err := t.encode(s)
		switch {
		case err != nil:
			t.fail(s.i, err)
			continue
		case text == "":
			continue
		}
		size += len(text)
		args = append(args, t.given[s.i].Name, text, record.HexNonceOf(s.existing.raw), slot)
		sent = append(sent, s)
	}
	return sent, args, n
}

// encode returns the new definition of a schedule and its first slot. The text is empty if nothing
// is to be changed.
func (t *topicBatch) encode(s *setting) (text, slot string, err error) {
	s.to = s.given
	if s.read {
		if s.to, err = t.client.onto(s.given, s.existing.old, s.bad); err != nil || s.to == nil {
			return "", "", err
		}
	}
	if text, err = s.to.Encode(); err != nil || record.SameDefinition(s.existing.raw, text) {
		return "", "", err
	}
	slot, err = s.to.slotWord(t.clock)
	return text, slot, err
}

// setSchedules makes one call of the schedule_set script, for n schedules, each with name,
// definition, nonce of the existing one and first slot. It returns a word for each, and Redis's
// clock.
func (c *Client) setSchedules(ctx context.Context, k *script.Keys, n int, list []any) (words []string, now int64, err error) {
	const each = 4 // values of a schedule
	series := c.series.Get()
	args := append([]any{series.Next()}, list[:each]...)
	args = append(args, maxTick.Milliseconds(), script.ControlChannel(c.o.prefix), k.Topic)
	r, err := c.scripts.Exec(ctx, script.ScheduleSet, k, k.Receipt(series.ID), n, append(args, list[each:]...)...)
	c.series.Put(series, err)
	if words = strings.Fields(r.Text(2)); err == nil && len(words) != n {
		err = script.ErrReply
	}
	return words, r.Now(), err
}

// err returns the error of the batch.
func (b *scheduleBatch) err() error {
	failed, first := 0, []error(nil)
	for i := range b.results {
		if err := b.results[i].Err; err != nil {
			if failed++; failed <= keptErrors {
				first = append(first, err)
			}
		}
	}
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("schedule batch: %d of %d schedules failed: %w", failed, len(b.results), errors.Join(first...))
}

// note notes a change for the audit, as much of it as an entry has.
func (b *scheduleBatch) note(s *setting) {
	if actorOf(b.ctx) == "" || b.now.Len() > record.MaxFilter && b.was.Len() > record.MaxFilter {
		return
	}
	s.existing.to = s.to
	now, was := s.existing.texts()
	name := strconv.Quote(b.given[s.i].Name)
	if len(b.topics) > 1 {
		name = strconv.Quote(b.given[s.i].Topic) + " " + name
	}
	for _, one := range []struct {
		to   *strings.Builder
		text string
	}{{&b.now, now}, {&b.was, was}} {
		if one.to.Len() > 0 {
			one.to.WriteString("; ")
		}
		one.to.WriteString(name + " " + one.text)
	}
}

// record records the batch in the audit, and returns its error.
func (b *scheduleBatch) record(err error) error {
	count, unknown := int64(0), false
	for _, r := range b.results {
		if r.Changed {
			count++
		}
		unknown = unknown || errors.Is(r.Err, ErrUnknownOutcome)
	}
	place := script.Place{Call: "schedule"}
	if len(b.topics) == 1 {
		place.Topic = b.topics[0]
	}
	return b.client.auditedIf(b.ctx, place, b.now.String(), b.was.String(), count, unknown, err)
}
