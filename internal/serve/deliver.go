package serve

import (
	"context"
	"errors"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/flow"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A delivery is a plan on its way to its target.
type delivery struct {
	topic   *Topic // that has the parcels
	target  string
	plan    commit.Plan
	now     int64 // Redis's clock of the topic, Unix ms
	list    []commit.Parcel
	rows    []commit.Row
	refused []Undelivered
	ends    []commit.Row // arrivals of steps that the target has refused
}

// send carries out a plan. It returns what is to be kept of the parcels that the target has
// refused. An error says that the plan must be sent again.
func (t *Topic) send(ctx context.Context, target string, plan commit.Plan, now int64, parcels []string) (refused []Undelivered, err error) {
	d := &delivery{topic: t, target: target, plan: plan, now: now, rows: make([]commit.Row, 0, len(parcels))}
	for _, text := range parcels {
		for _, one := range commit.SplitParcel(text) {
			p, err := commit.DecodeParcel(one)
			switch {
			case errors.Is(err, commit.ErrLaterParcel):
				return nil, err
			case err != nil:
				d.refuse(&p, err)
				continue
			}
			row := p.RowOf()
			row.Topic, row.Age, row.Told = target, max(0, now-p.At), true
			d.list, d.rows = append(d.list, p), append(d.rows, row)
		}
	}
	call, cancel := context.WithTimeout(ctx, deliverTimeout)
	defer cancel()
	if err := d.deliver(call); err != nil {
		return nil, err
	}
	return d.refused, d.arrive(call)
}

// deliver carries out the rows of the plan.
func (d *delivery) deliver(ctx context.Context) error {
	if len(d.rows) == 0 {
		return nil
	}
	outcomes, err := d.topic.Server.Config.Deliver(ctx, d.plan, d.rows)
	if err != nil {
		return err
	}
	for i, outcome := range outcomes {
		if script.Code(outcome) == script.CodeWrongType { // an operator can repair it
			return outcome
		}
		if outcome != nil {
			d.refuse(&d.list[i], outcome)
		}
	}
	return nil
}

// refuse notes that the target has not taken a parcel. A step that cannot start has ended.
func (d *delivery) refuse(p *commit.Parcel, why error) {
	reason := clip(contain.Message(why))
	if p.Format == commit.FormatStep {
		if f, err := record.DecodeLink(p.Link); err == nil && f.Topic == d.topic.Keys.Topic {
			row := commit.ArrivalRow(commit.End{ID: f.ID, Name: f.Name, Step: f.Step, Outcome: flow.Refused, Rest: reason})
			row.Topic, row.Told = f.Topic, true
			d.ends = append(d.ends, row)
			return
		}
	}
	id := p.Row.ID
	if p.Format > commit.FormatStep {
		id = p.End.ID
	}
	d.refused = append(d.refused, Undelivered{d.now, p.From, d.target, id, reason})
}

// arrive tells the flows of this topic which of their steps the target has refused. The plan is
// that of the target with another series, so that the same calls follow it if it is sent again. No
// topic can have a name with a #.
func (d *delivery) arrive(ctx context.Context) error {
	if len(d.ends) == 0 {
		return nil
	}
	plan := d.plan
	plan.Series = "~#" + d.target
	outcomes, err := d.topic.Server.Config.Deliver(ctx, plan, d.ends)
	return errors.Join(append(outcomes, err)...)
}

// wakeRelay makes the relay loop look for parcels.
func (t *Topic) wakeRelay() { t.Loops.relay.Wake() }
