package places

import (
	"cmp"
	"slices"

	"github.com/delayq/delayq/internal/part"
)

// A Load is what one place has.
type Load struct {
	Place            Ref
	Jobs             int64 // unfinished
	Overdue, Running int64
	Kept             int64 // what is left of jobs that have ended
}

// A Closing is what a generation before the open one has left.
type Closing struct {
	part.Generation
	Jobs, Kept int64
}

// Summary returns the places of the open generation that have the fewest and the most unfinished
// jobs, and what the generations before it have left, the oldest first. The home of a topic with
// partitions counts only while it is in the map: later it has the jobs of schedules.
func Summary(m part.Map, loads []Load) (least, most Load, closing []Closing) {
	open := m.Open().Number
	for _, g := range m[:len(m)-1] {
		closing = append(closing, Closing{Generation: g})
	}
	var list []Load
	for _, one := range loads {
		if one.Place.Generation == open {
			list = append(list, one)
			continue
		}
		at := slices.IndexFunc(closing, func(c Closing) bool { return c.Number == one.Place.Generation })
		if at >= 0 {
			closing[at].Jobs, closing[at].Kept = closing[at].Jobs+one.Jobs, closing[at].Kept+one.Kept
		}
	}
	if len(list) == 0 {
		return least, most, closing
	}
	by := func(a, b Load) int { return cmp.Or(cmp.Compare(a.Jobs, b.Jobs), cmp.Compare(a.Overdue, b.Overdue)) }
	return slices.MinFunc(list, by), slices.MaxFunc(list, by), closing
}
