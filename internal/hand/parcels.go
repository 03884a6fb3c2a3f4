package hand

import (
	"strconv"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

// Parcels are jobs with these IDs that a run hands over to a target.
func (h *Hand) Parcels(target string, ids ...string) (all run.Parcels) {
	for _, id := range ids {
		head, tail := h.Record("+0", 0)
		p := commit.Parcel{From: "by hand", Row: commit.Row{ID: id, Replace: string(commit.ReplaceDead), Record: record.Join(head, 0, tail)}}
		all.Text += record.Netstring(target) + record.Netstring(p.Encode())
		all.Jobs++
	}
	return all
}

// TryPlan is one call of the parcel_plan script. passed is the tag of a plan that the target has
// refused. With an empty target it lists targets: those behind passed.
func (h *Hand) TryPlan(target, tag, passed string, floor uint64) (script.Reply, error) {
	return h.Run(script.ParcelPlan, target, tag, passed, strconv.FormatUint(floor, 10))
}

// TryDone is one call of the parcel_done script, about a reply to TryPlan.
func (h *Hand) TryDone(target string, plan script.Reply, refused ...string) (script.Reply, error) {
	args := []any{target, plan.Text(3), plan.Text(4)}
	for _, one := range refused {
		args = append(args, one)
	}
	return h.Run(script.ParcelDone, args...)
}
