package places

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/delayq/delayq/internal/script"
)

// Up to that many running jobs, a page is made of the IDs of all of them.
const snapshotJobs = 10_000

// The words with which the place among running jobs begins.
const (
	afterID = "after" // jobs are sorted by ID: the ID follows
	scanned = "scan"  // they are not: the cursor of ZSCAN follows, and IDs that it has returned
)

// stepRunning makes one call that looks at running jobs.
func (w *walk[J]) stepRunning(ctx context.Context) error {
	if w.run == nil {
		if err := w.beginRunning(ctx); err != nil {
			return err
		}
	}
	run := w.run
	if run.scanning && len(run.pending) == 0 && run.scan != "" {
		if err := w.scanRunning(ctx, w.portionRunning()); err != nil {
			return err
		}
	}
	if some := run.pending[:min(len(run.pending), w.portionRunning())]; len(some) > 0 {
		r, err := w.look(ctx, stateRunning, len(some), some)
		if err != nil {
			return err
		}
		looked := int(r.Number(3))
		if looked == 0 || looked > len(some) {
			return script.ErrReply
		}
		w.place, run.pending = []string{afterID, some[looked-1]}, run.pending[looked:]
		if err := w.add(ctx, r); err != nil {
			return err
		}
	}
	w.ended = len(run.pending) == 0 && run.scan == ""
	if run.scanning {
		w.place = append([]string{scanned, run.scan}, run.pending...)
	}
	return nil
}

// portionRunning returns how many running jobs the next call looks at.
func (w *walk[J]) portionRunning() int {
	n := min(lookMost, w.q.Budget-w.page.Examined)
	if w.run.scanning || !w.q.Filtered {
		// The cursor holds what ZSCAN returns beyond the page, so that should be little.
		n = min(n, w.q.Limit-len(w.page.Jobs))
	}
	return n
}

// scanRunning makes one call of ZSCAN, which returns about that many IDs.
func (w *walk[J]) scanRunning(ctx context.Context, about int) error {
	r, err := w.look(ctx, "ids", about, []string{w.run.scan})
	if err != nil {
		return err
	}
	if w.run.scan = r.List(5).Text(0); w.run.scan == "0" {
		w.run.scan = ""
	}
	w.run.pending = append(w.run.pending, r.List(6).Texts()...)
	return nil
}

// beginRunning finds the running jobs from a place on. If there are few, it reads all of their IDs
// and sorts them. What ZSCAN returns includes every ID that is there all the time.
func (w *walk[J]) beginRunning(ctx context.Context) error {
	after, place, offset := "", w.place, 0
	switch {
	case len(place) == 0:
	case place[0] == skipped && len(place) == 2:
		skip, _ := strconv.ParseInt(place[1], 10, 64) // it was made from a number
		offset = int(min(skip, math.MaxInt))
	case place[0] == scanned && len(place) > 1:
		w.run = &runningWalk{scanning: true, scan: place[1], pending: place[2:]}
		return nil
	case place[0] == afterID && len(place) == 2:
		after = place[1]
	default:
		return &Refusal{true, "it has no place among running jobs"}
	}
	all := w.Reader
	defer func() { w.Reader = all }()
	err := all.Scan(ctx, w.keys.Leases, func(scripts script.Caller) error {
		one := *all
		one.Scripts = scripts
		w.Reader, w.run = &one, &runningWalk{}
		for w.run.scan = "0"; w.run.scan != ""; {
			if err := w.scanRunning(ctx, lookMost); err != nil {
				return err
			}
			if after == "" && w.page.Total > snapshotJobs {
				w.run = &runningWalk{scanning: true, scan: "0"}
				if offset > 0 {
					return errNoOrder(offset)
				}
				return nil
			}
		}
		return nil
	})
	if err != nil {
		w.run = nil
		return err
	}
	if w.run.scanning {
		return nil
	}
	slices.Sort(w.run.pending)
	w.run.pending = slices.DeleteFunc(slices.Compact(w.run.pending), func(id string) bool {
		switch {
		case !strings.HasPrefix(id, w.q.IDPrefix):
			return true
		case after == "":
			return false
		}
		return w.q.Latest == (id > after) || id == after
	})
	if w.q.Latest {
		slices.Reverse(w.run.pending)
	}
	w.run.pending = w.run.pending[min(offset, len(w.run.pending)):]
	return nil
}
