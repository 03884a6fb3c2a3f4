package hand

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/flow"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A Flow is a flow as a Hand of its home starts it.
type Flow struct {
	ID, Name string // of the last step; of the flow, 8 bytes
	Flags    string // as in flows
	Deadline string // as the script reads it
	Steps    []FlowStep
}

// A FlowStep is a step of a Flow.
type FlowStep struct {
	Topic, ID string
	After     []int  // the steps that it waits for
	Lenient   bool   // it starts when they have ended, however
	Replace   string // as in rows; empty: dead jobs
	Nonce     string // of its record, when the flow has been started
}

// number is the number of a step as scripts write it.
func number(n int) string { return fmt.Sprintf("%08x", n) }

// Definition is what steps holds of a step.
func (f *Flow) Definition(n int) string {
	s, policy := f.Steps[n], "-"
	if s.Lenient {
		policy = "i"
	}
	var before, after strings.Builder
	for _, i := range s.After {
		before.WriteString(number(i))
	}
	for i, other := range f.Steps {
		if slices.Contains(other.After, n) {
			after.WriteString(number(i))
		}
	}
	return policy + record.Netstring(s.Topic) + record.Netstring(s.ID) + record.Netstring(before.String()) + record.Netstring(after.String())
}

// Link is the link of a step without the nonce; -1: of the last step.
func (h *Hand) Link(f *Flow, n int) string {
	at := "ffffffff"
	if n >= 0 {
		at = number(n)
	}
	return f.Name + at + record.Netstring(h.Keys.Topic) + f.ID
}

// ofFlow is the record of a step. It has the format version by which a program of v0.1.0 knows that
// it cannot read it.
func (h *Hand) ofFlow(due string) (head, tail string) {
	head, tail = h.Record(due, 0)
	return head[:record.NonceLen] + "\x05" + head[record.NonceLen+1:], tail
}

// Row is the parcel of a step without the time.
func (h *Hand) Row(f *Flow, n int) string {
	head, tail := h.ofFlow("+0")
	f.Steps[n].Nonce = head[:record.NonceLen]
	replace := f.Steps[n].Replace
	if replace == "" {
		replace = "d"
	}
	return "2" + record.Netstring(f.ID) + record.Netstring(f.Steps[n].ID) + record.Netstring(replace) + record.Netstring(h.Link(f, n)) +
		"0 0 " + record.Join(head, 0, tail)
}

// words are the first arguments of a script that stores jobs.
func (h *Hand) words(number string) []any {
	return []any{number, script.MaxTick.Milliseconds(), script.ControlChannel(h.Prefix()), h.Keys.Topic}
}

// TryStart is one call of the flow_start script.
func (h *Hand) TryStart(f *Flow) (script.Reply, error) {
	head, tail := h.ofFlow(f.Deadline)
	args := append(h.words(h.Series.Next()), f.ID, head, tail, "d"+f.Deadline, f.Name, f.Flags)
	steps := make([]commit.StartedStep, len(f.Steps))
	for n, s := range f.Steps {
		steps[n] = commit.StartedStep{Topic: s.Topic, Definition: f.Definition(n), Waits: len(s.After), Parcel: h.Row(f, n)}
	}
	return h.Run(script.FlowStart, append(args, commit.StartWords(steps)...)...)
}

// TryLinked is one call of the enqueue_linked script about parcels without their times.
func (h *Hand) TryLinked(number, receipt string, rows ...string) (script.Reply, error) {
	args, links := h.words(number), []any{}
	for _, row := range rows {
		var fields [4]string // from, ID, replace, link
		rest := row[1:]
		for i := range fields {
			var ok bool
			fields[i], rest, ok = record.CutNetstring(rest)
			require.True(h.T, ok)
		}
		_, rest, _ = strings.Cut(rest, " ")
		_, rest, _ = strings.Cut(rest, " ")
		args = append(args, fields[1], rest, "", fields[2]+"+0")
		links = append(links, fields[3])
	}
	return h.Try(script.EnqueueLinked, h.Keys.Of(script.EnqueueLinked, receipt), append(append(args, links...), len(rows))...)
}

// TryArrive is one call of the arrive script.
func (h *Hand) TryArrive(number, receipt string, ends ...string) (script.Reply, error) {
	args := []any{number, script.ControlChannel(h.Prefix()), h.Keys.Topic}
	for _, end := range ends {
		args = append(args, end)
	}
	return h.Try(script.Arrive, h.Keys.Of(script.Arrive, receipt), args...)
}

// TryCancelSteps is one call of the flow_cancel script. A step is its ID, and the name of its flow
// with its number.
func (h *Hand) TryCancelSteps(number, receipt string, steps ...[2]string) (script.Reply, error) {
	args, members := []any{number, script.ControlChannel(h.Prefix()), h.Keys.Topic}, []any{}
	for _, step := range steps {
		args, members = append(args, step[0], ""), append(members, step[1])
	}
	return h.Try(script.FlowCancel, h.Keys.Of(script.FlowCancel, receipt), append(args, members...)...)
}

// TryRelease is one call of the flow_release script, about the last steps of flows with names.
func (h *Hand) TryRelease(number, receipt string, flows ...[2]string) (script.Reply, error) {
	args, names := h.words(number), []any{}
	for _, flow := range flows {
		args, names = append(args, flow[0], "+0", "", 0, ""), append(names, flow[1])
	}
	return h.Try(script.FlowRelease, h.Keys.Of(script.FlowRelease, receipt), append(args, names...)...)
}

// TrySweep is one call of the flow_sweep script.
func (h *Hand) TrySweep(id, name, mode string, from int64) (script.Reply, error) {
	return h.Run(script.FlowSweep, script.ControlChannel(h.Prefix()), h.Keys.Topic, id, name, mode, from)
}

// TryBegin is one call of the flow_begin script. It returns the state of a flow, and what the
// script says about it.
func (h *Hand) TryBegin(id, name string) (state, text string, err error) {
	r, err := h.Run(script.FlowBegin, id, name)
	return r.List(2).Text(0), r.List(3).Text(0), err
}

// A Load is a parcel for flows, as it is delivered.
type Load struct {
	Format byte
	Text   string // what follows the time, with the format
}

// Loads reads the parcels of a reply to TryPlan.
func Loads(plan script.Reply) (list []Load) {
	for _, text := range plan.List(2).Texts() {
		for _, one := range commit.SplitParcel(text) {
			list = append(list, Load{one[13], one[13:]})
		}
	}
	return list
}

// Member reads a parcel of format 4 or 5: an ID, and what follows it.
func (l Load) Member() (id, rest string) {
	id, rest, _ = record.CutNetstring(l.Text[1:])
	return id, rest
}

// A Delivery is what a relay does with a plan: some calls, one after the other.
type Delivery struct {
	calls   []func() error
	Refused []string // the parcels of steps that their topics have refused
}

// Next makes the next call. It reports whether there was one.
func (d *Delivery) Next() (bool, error) {
	if len(d.calls) == 0 {
		return false, nil
	}
	one := d.calls[0]
	d.calls = d.calls[1:]
	return true, one()
}

// All makes the calls that are left.
func (d *Delivery) All() error {
	for {
		if some, err := d.Next(); !some || err != nil {
			return err
		}
	}
}

// before puts calls before those that are left.
func (d *Delivery) before(calls ...func() error) { d.calls = append(calls, d.calls...) }

// Deliver prepares the delivery of a plan of another topic to that of the Hand.
func (h *Hand) Deliver(from *Hand, plan script.Reply) *Delivery {
	d := &Delivery{}
	plan = slices.Clone(plan)
	number, topic := plan.Text(3), from.Keys.Topic
	name := fmt.Sprintf("relay%x", topic)
	series := func(kind string, i int) string { return h.Keys.Receipt(name + kind + strconv.Itoa(i)) }
	var ends, lost []string
	for i, l := range Loads(plan) {
		switch l.Format {
		case '2': // each alone, because an ID may occur once in a call
			d.calls = append(d.calls, func() error {
				r, err := h.TryLinked(number, series("n", i), l.Text)
				if letter := r.Text(2); err == nil && letter != "" && !script.Stored(letter[0]) {
					lost = append(lost, refusal(l.Text, letter))
					d.Refused = append(d.Refused, l.Text)
				}
				return err
			})
		case '3':
			ends = append(ends, l.Text[1:])
		case '4':
			id, rest := l.Member()
			d.calls = append(d.calls, func() error {
				_, err := h.TryCancelSteps(number, series("c", i), [2]string{id, rest})
				return err
			})
		case '5':
			id, rest := l.Member()
			d.calls = append(d.calls, d.sweep(h, id, rest, 0))
		}
	}
	if len(ends) > 0 {
		d.before(d.arrive(h, number, name+"a", ends, 0))
	}
	d.calls = append(d.calls, func() error {
		if len(lost) > 0 {
			d.before(d.arrive(from, number, fmt.Sprintf("lost%xl", h.Keys.Topic), lost, 0))
		}
		return nil
	}, func() error {
		_, err := from.TryDone(h.Keys.Topic, plan)
		return err
	})
	return d
}

// sweep is a call of flow_sweep, and those that follow.
func (d *Delivery) sweep(h *Hand, id, rest string, at int64) func() error {
	return func() error {
		r, err := h.TrySweep(id, rest[:8], rest[8:], at)
		if err == nil && r.Number(2) >= 0 {
			d.before(d.sweep(h, id, rest, r.Number(2)))
		}
		return err
	}
}

// arrive is a call of arrive, with the releases and the calls that follow.
func (d *Delivery) arrive(h *Hand, number, series string, ends []string, i int) func() error {
	return func() error {
		name := series + strconv.Itoa(i)
		r, err := h.TryArrive(number, h.Keys.Receipt(name), ends...)
		if err != nil {
			return err
		}
		if left := ends[r.Number(3):]; len(left) > 0 {
			d.before(d.arrive(h, number, series, left, i+1))
		}
		for j, id := range r.List(2).Texts() {
			d.before(func() error {
				_, err := h.TryRelease(number, h.Keys.Receipt(name+"r"+strconv.Itoa(j)), [2]string{id, r.List(4).Text(j)})
				return err
			})
		}
		return nil
	}
}

// NonceOf is the nonce of the record in the parcel of a step.
func NonceOf(row string) string {
	rest := row[1:]
	for range 4 {
		_, rest, _ = record.CutNetstring(rest)
	}
	return strings.SplitN(rest, " ", 3)[2][:record.NonceLen]
}

// refusal is the end of a step that its topic has refused.
func refusal(row, letter string) string {
	id, rest, _ := record.CutNetstring(row[1:])
	for range 2 {
		_, rest, _ = record.CutNetstring(rest)
	}
	link, _, _ := record.CutNetstring(rest)
	return record.Netstring(id) + link[:16] + "n" + letter
}

// TryAdd is one call of the flow_add script: it adds steps to a group.
func (h *Hand) TryAdd(f *Flow, closes bool, steps ...FlowStep) (script.Reply, error) {
	closed := 0
	if closes {
		closed = 1
	}
	args := []any{h.Series.Next(), script.ControlChannel(h.Prefix()), h.Keys.Topic, f.ID, f.Name, closed}
	for _, s := range steps {
		f.Steps = append(f.Steps, s)
		args = append(args, f.Definition(len(f.Steps)-1), h.Row(f, len(f.Steps)-1))
	}
	return h.Run(script.FlowAdd, args...)
}

// Guard looks once for steps that are lost, and says so at home. all has the Hands of all topics.
func (h *Hand) Guard(all map[string]*Hand) (lost int) {
	h.T.Helper()
	r, err := h.Run(script.FlowLook, "0")
	require.NoError(h.T, err)
	for i, id := range r.List(3).Texts() {
		name := r.List(4).Text(i)
		switch r.Text(5)[i] {
		case script.LetterGone:
			require.NoError(h.T, (&Delivery{}).sweep(h, id, name+"e", 0)())
			continue
		case flow.Released, flow.Failed: // whoever was to release it can have died
			_, err := h.TryRelease(h.Series.Next(), h.Keys.Receipt(h.Series.ID), [2]string{id, name})
			require.NoError(h.T, err)
		}
		started, err := h.Run(script.FlowStarted, id, name, 0, 0)
		require.NoError(h.T, err)
		for j, text := range started.List(3).Texts() {
			var topic, step string
			topic, text, _ = record.CutNetstring(text[1:])
			step, _, _ = record.CutNetstring(text)
			member := name + number(int(started.List(2).Number(j)))
			there, err := all[topic].Run(script.FlowLost, h.Keys.Topic, step, member)
			require.NoError(h.T, err)
			if there.Text(2) == "-" {
				lost++
				d := &Delivery{}
				require.NoError(h.T, d.arrive(h, h.Series.Next(), "guard", []string{record.Netstring(id) + member + "g" + "lost"}, 0)())
				require.NoError(h.T, d.All())
			}
		}
	}
	return lost
}
