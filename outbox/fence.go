package outbox

import (
	"context"
	"errors"
	"slices"

	"github.com/delayq/delayq/internal/commit"
)

// A lostCall is a call of a plan that has no answer, so that Redis can still carry it out. If the
// plan is sent again, the call is too, and is made once. Otherwise the rows go into another plan,
// whose calls can have other names.
type lostCall struct {
	series, name string
	number       uint64
}

// probe is an ID that no job has.
const probe = "\x00\xffoutbox\xff\x00"

// nothing returns a row whose call changes nothing.
func nothing(topic string) []commit.Row {
	return []commit.Row{{Kind: commit.RowReschedule, Topic: topic, ID: probe}}
}

// fence makes the calls of earlier plans about a topic come too late that have no answer: it makes
// another call with the series and the number of each, of which only the receipt stays. Redis does
// not say whether it has stored that, so a second call with another tag asks: it comes too late
// itself if it has. fence reports whether all calls come too late. It returns an error if Redis
// does not answer.
func (h *holding) fence(ctx context.Context, topic string, next commit.Plan) (fenced bool, err error) {
	fenced = true
	for _, c := range h.lost[topic] {
		if c.of(next) {
			continue
		}
		passed := false
		for _, tag := range []string{"fence", "asks"} {
			call := commit.Plan{Series: c.series, Number: c.number, Tag: tag, Call: c.name}
			_, _, err := library.SendRows(ctx, h.client, call, nothing(topic))
			if passed = errors.Is(err, commit.ErrPassed); passed {
				break
			}
			if err != nil {
				return false, err
			}
		}
		fenced = fenced && passed
	}
	return fenced, nil
}

// errUnfenced is the error of a topic while Redis has no memory for a fence, or writes nothing.
var errUnfenced = errors.New("outbox: Redis stores nothing now that keeps a lost call about the topic from coming late")

// onlyCancels reports whether all rows are cancels. They pass when others of their topic do not,
// and are about jobs that no row before them makes.
func onlyCancels(rows []commit.Row) bool {
	return !slices.ContainsFunc(rows, func(r commit.Row) bool { return r.Kind != commit.RowCancel })
}

// of reports whether the call is one of a plan.
func (c *lostCall) of(plan commit.Plan) bool {
	return c.series == plan.Series && c.number == plan.Number
}

// unanswered notes which calls about a topic have no answer after it was sent.
func (h *holding) unanswered(d *delivery) {
	plan := commit.Plan{Series: h.marker.series(h.series()), Number: uint64(h.number)}
	calls := h.lost[d.topic]
	calls = slices.DeleteFunc(calls, func(c lostCall) bool {
		if c.of(plan) {
			return d.err == nil
		}
		return d.fenced
	})
	if last := (lostCall{plan.Series, d.lost, plan.Number}); d.lost != "" && !slices.Contains(calls, last) {
		calls = append(calls, last)
	}
	if len(calls) == 0 {
		delete(h.lost, d.topic)
		return
	}
	if h.lost == nil {
		h.lost = make(map[string][]lostCall)
	}
	h.lost[d.topic] = calls
}
