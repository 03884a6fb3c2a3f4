package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/delayq/delayq/internal/sqltest"
)

// selection is what of the table is to be measured.
type selection struct {
	rows   *regexp.Regexp // by row ID
	sides  *regexp.Regexp // by label
	rounds int
}

// apply returns the rows with the sides that are selected.
func (s selection) apply(all []row) []row {
	var chosen []row
	for _, r := range all {
		if !s.rows.MatchString(r.id) {
			continue
		}
		var sides []side
		for _, sd := range r.sides {
			if s.sides.MatchString(sd.label) {
				sides = append(sides, sd)
			}
		}
		if len(sides) > 0 {
			for k := range min(2, len(sides)) {
				if sides[k].label != r.sides[k].label {
					r.targets = nil // they are about a side that is left out
				}
			}
			r.sides = sides
			chosen = append(chosen, r)
		}
	}
	return chosen
}

// roundsOf is the number of rounds of a row.
func (s selection) roundsOf(r row) int {
	if r.rounds > 0 {
		return min(s.rounds, r.rounds)
	}
	return s.rounds
}

// run measures the selected rows: the sides of a row in turn, in each round
// the other way about, so that neither has the warmer machine.
//
// A side that cannot be measured on this machine is left out, with a remark.
func (b *bench) run(ctx context.Context, all []row, s selection, progress *progress) ([]rowReport, error) {
	chosen := s.apply(all)
	for _, r := range chosen {
		progress.total += s.roundsOf(r) * len(r.sides)
	}
	var reports []rowReport
chosen:
	for _, r := range chosen {
		results := make([][]sample, len(r.sides))
		for round := range s.roundsOf(r) {
			for k := range r.sides {
				if round%2 == 1 {
					k = len(r.sides) - 1 - k
				}
				progress.step("%s, round %d of %d, %s", r.id, round+1, s.roundsOf(r), r.sides[k].label)
				result, err := r.sides[k].measure(ctx, b)
				if errors.Is(err, sqltest.ErrMissing) && os.Getenv("CI") == "" {
					b.notef("%s is left out: %v", r.id, err)
					continue chosen
				}
				if missing := (*leftOut)(nil); errors.As(err, &missing) && (missing.always || os.Getenv("CI") == "") {
					b.noteOnce(missing.Error())
					continue
				}
				if err != nil {
					return nil, fmt.Errorf("%s, round %d, %s: %w", r.id, round+1, r.sides[k].label, err)
				}
				results[k] = append(results[k], result)
			}
		}
		if len(slices.Concat(results...)) > 0 {
			reports = append(reports, r.report(results))
		}
	}
	progress.end()
	return reports, nil
}

// progress tells on a terminal, or in a log, what is being measured.
type progress struct {
	out      io.Writer
	terminal bool // one line that changes, instead of one for each step
	began    time.Time
	total    int
	done     int
}

// step says what comes next.
func (p *progress) step(format string, args ...any) {
	p.done++
	line := fmt.Sprintf("[%d/%d %s] %s", p.done, p.total, time.Since(p.began).Round(time.Second), fmt.Sprintf(format, args...))
	if p.terminal {
		fmt.Fprintf(p.out, "\r\x1b[K%s", line)
	} else {
		fmt.Fprintln(p.out, line)
	}
}

// end takes the line away.
func (p *progress) end() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
