package main

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// curve is how the cost of a step changes with the number of pending jobs.
type curve struct {
	Step   string  `json:"step"`
	Points []point `json:"points"`
}

// point is one point of a curve.
type point struct {
	Pending int     `json:"pending"`
	Cost    float64 `json:"redis_cpu_us_per_job"`
}

// curvesOf reads the curves from the figures of a side, one for each step that
// has any, by rising numbers of pending jobs.
func curvesOf(s sideReport) []curve {
	var curves []curve
	for _, step := range scaleSteps {
		c := curve{Step: step}
		for figure, cost := range s.Summary {
			if size, ok := strings.CutPrefix(figure, step+" @ "); ok {
				if pending, err := strconv.Atoi(size); err == nil {
					c.Points = append(c.Points, point{pending, cost})
				}
			}
		}
		if len(c.Points) > 0 {
			sort.Slice(c.Points, func(i, j int) bool { return c.Points[i].Pending < c.Points[j].Pending })
			curves = append(curves, c)
		}
	}
	return curves
}

// plotCurves draws the curves into a file, SVG or PNG by its name.
func plotCurves(file string, curves []curve) error {
	p := plot.New()
	p.Title.Text = "Cost of a job while the backlog grows"
	p.X.Label.Text = "pending jobs"
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = thousands{}
	p.Y.Label.Text = "Redis CPU, µs per job"
	p.Y.Min = 0
	p.Legend.Top = true
	var lines []any
	for _, c := range curves {
		points := make(plotter.XYs, len(c.Points))
		for i, pt := range c.Points {
			points[i] = plotter.XY{X: float64(pt.Pending), Y: pt.Cost}
			p.Y.Max = max(p.Y.Max, 1.3*pt.Cost) // room for the legend
		}
		lines = append(lines, c.Step, points)
	}
	if err := plotutil.AddLinePoints(p, lines...); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	p.Y.Min = 0
	if err := p.Save(18*vg.Centimeter, 11*vg.Centimeter, file); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

// thousands labels a logarithmic axis with whole numbers.
type thousands struct{}

// Ticks implements plot.Ticker.
func (thousands) Ticks(low, high float64) []plot.Tick {
	ticks := plot.LogTicks{}.Ticks(low, high)
	for i, t := range ticks {
		if t.Label != "" {
			ticks[i].Label = number(t.Value, 0)
		}
	}
	return ticks
}
