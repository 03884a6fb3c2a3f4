package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// A picture is a panel with the answers to its queries.
type picture struct {
	panel
	lines    []line
	from, to time.Time
	step     time.Duration
}

// The measures of a picture, in pixels.
const (
	column = 40 // of the 24 columns of the board
	unitH  = 30 // of a unit of height
	left   = 56 // room for the numbers of the axis
	top    = 30 // room for the title
	letter = 6  // about the width of one
	entry  = 15 // height of a line of the legend
)

var palette = []string{
	"#3274d9", "#56a64b", "#e0752d", "#a352cc", "#37a2a8", "#e02f44", "#b28b00", "#8f3bb8", "#1f60c4", "#7b8087",
}

var named = map[string]string{"green": "#299c46", "yellow": "#b28b00", "orange": "#e0752d", "red": "#c4162a", "blue": "#1f60c4"}

// svg draws the panels of a row.
func svg(title string, pictures []picture) string {
	first, height := pictures[0].GridPos.Y, 0
	for _, p := range pictures {
		height = max(height, p.GridPos.Y+p.GridPos.H-first)
	}
	c := &canvas{}
	c.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11" fill="#444">`,
		24*column, height*unitH)
	c.printf("\n<title>%s</title>\n", escape(title))
	for _, p := range pictures {
		c.printf(`<svg x="%d" y="%d" width="%d" height="%d">`,
			p.GridPos.X*column, (p.GridPos.Y-first)*unitH, p.GridPos.W*column, p.GridPos.H*unitH)
		p.draw(c)
		c.printf("</svg>\n")
	}
	c.printf("</svg>\n")
	return c.String()
}

type canvas struct{ strings.Builder }

func (c *canvas) printf(format string, args ...any) { fmt.Fprintf(&c.Builder, format, args...) }

func (c *canvas) text(x, y float64, attributes, s string) {
	c.printf(`<text x="%s" y="%s"%s>%s</text>`, short(x), short(y), attributes, escape(s))
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}

// short writes a coordinate.
func short(x float64) string { return strconv.FormatFloat(math.Round(x*10)/10, 'f', -1, 64) }

func (p picture) draw(c *canvas) {
	width, height := float64(p.GridPos.W*column), float64(p.GridPos.H*unitH)
	c.printf(`<rect x="2" y="2" width="%s" height="%s" rx="3" fill="#fff" stroke="#ccc"/>`, short(width-4), short(height-4))
	c.text(10, 19, ` font-weight="bold"`, p.Title)
	switch {
	case len(p.lines) == 0:
		c.text(width/2, height/2+8, ` text-anchor="middle" fill="#999"`, "no data")
	case p.Type == "stat":
		p.stat(c, width, height)
	case p.Type == "heatmap":
		p.heat(c, area{left, top, width - left - 12, height - top - 22})
	default:
		rows := p.legend(nil, width)
		a := area{left, top, width - left - 12, height - top - 26 - float64(rows*entry)}
		p.chart(c, a)
		p.legend(c, width)
	}
}

// stat writes the last value of each series.
func (p picture) stat(c *canvas, width, height float64) {
	n := float64(len(p.lines))
	for i, l := range p.lines {
		last := l.points[len(l.points)-1].value
		at := width / n * (float64(i) + 0.5)
		c.text(at, height/2+18, ` text-anchor="middle" font-size="24" fill="`+p.colour(last)+`"`, format(last, p.FieldConfig.Defaults.Unit))
		if n > 1 {
			c.text(at, height-10, ` text-anchor="middle"`, l.name)
		}
	}
}

// colour is that of the threshold that a value has reached.
func (p picture) colour(value float64) string {
	colour := "#444"
	for _, step := range p.FieldConfig.Defaults.Thresholds.Steps {
		if step.Value == nil || value >= *step.Value {
			colour = named[step.Color]
		}
	}
	return colour
}

// An area is the part of a picture that the axes enclose.
type area struct{ x, y, w, h float64 }

// chart draws lines, or stacks areas.
func (p picture) chart(c *canvas, a area) {
	stacked := p.FieldConfig.Defaults.Custom.Stacking.Mode == "normal"
	most, below := 0.0, map[int64]float64{}
	tops := make([][]float64, len(p.lines))
	for i, l := range p.lines {
		for _, pt := range l.points {
			value := pt.value
			if stacked && !math.IsNaN(value) {
				value += below[pt.at.Unix()]
				below[pt.at.Unix()] = value
			}
			tops[i] = append(tops[i], value)
			if !math.IsNaN(value) && !math.IsInf(value, 0) {
				most = max(most, value)
			}
		}
	}
	limit, limited := p.limit()
	if limited {
		most = max(most, limit)
	}
	unit := p.FieldConfig.Defaults.Unit
	step := tick(most, unit)
	scale := max(most, step) * 1.04
	for value := 0.0; value <= scale; value += step {
		y := a.y + a.h - value/scale*a.h
		c.printf(`<path d="M%s %sh%s" stroke="#eee"/>`, short(a.x), short(y), short(a.w))
		c.text(a.x-6, y+4, ` text-anchor="end"`, format(value, unit))
	}
	p.times(c, a)
	if limited {
		y := a.y + a.h - limit/scale*a.h
		c.printf(`<path d="M%s %sh%s" stroke="#c4162a" stroke-dasharray="6 4"/>`, short(a.x), short(y), short(a.w))
	}
	for i := len(p.lines) - 1; i >= 0; i-- { // stacks hide what is behind them
		points := p.lines[i].points
		var d strings.Builder
		pen, start, end := "M", 0.0, 0.0
		for n, pt := range points {
			if n > 0 && pt.at.Sub(points[n-1].at) > p.step*3/2 {
				pen = "M"
			}
			if math.IsNaN(tops[i][n]) || math.IsInf(tops[i][n], 0) {
				pen = "M"
				continue
			}
			x := a.x + a.w*float64(pt.at.Sub(p.from))/float64(p.to.Sub(p.from))
			if d.Len() == 0 {
				start = x
			}
			end = x
			d.WriteString(pen + short(x) + " " + short(a.y+a.h-tops[i][n]/scale*a.h))
			pen = "L"
		}
		colour := palette[i%len(palette)]
		fill := "none"
		if stacked {
			fmt.Fprintf(&d, "L%s %sH%sz", short(end), short(a.y+a.h), short(start))
			fill = colour
		}
		c.printf(`<path d="%s" fill="%s" stroke="%s" stroke-width="1.4"/>`, d.String(), fill, colour)
	}
}

// limit is the threshold that a panel shows as a line.
func (p picture) limit() (value float64, ok bool) {
	steps := p.FieldConfig.Defaults.Thresholds.Steps
	if p.FieldConfig.Defaults.Custom.ThresholdsStyle.Mode == "" || len(steps) < 2 {
		return 0, false
	}
	return *steps[len(steps)-1].Value, true
}

// times labels the axis of time, at most six times.
func (p picture) times(c *canvas, a area) {
	length := p.to.Sub(p.from)
	step := time.Minute
	for _, step = range []time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour, 4 * time.Hour} {
		if length/step < 6 {
			break
		}
	}
	for at := p.from.Truncate(step).Add(step); !at.After(p.to); at = at.Add(step) {
		x := a.x + a.w*float64(at.Sub(p.from))/float64(length)
		c.text(min(x, a.x+a.w-8), a.y+a.h+15, ` text-anchor="middle"`, at.UTC().Format("15:04"))
	}
}

// legend writes the names of the series from the bottom up, and returns the number of its lines. It
// writes nothing without a canvas.
func (p picture) legend(c *canvas, width float64) (rows int) {
	x, rows := 12.0, 1
	type place struct {
		x   float64
		row int
	}
	places := make([]place, len(p.lines))
	for i, l := range p.lines {
		w := float64(24 + letter*len([]rune(l.name)))
		if x+w > width-8 && x > 12 {
			x, rows = 12, rows+1
		}
		places[i] = place{x, rows}
		x += w
	}
	if c == nil {
		return rows
	}
	for i, at := range places {
		y := float64(p.GridPos.H*unitH - 10 - (rows-at.row)*entry)
		c.printf(`<path d="M%s %sh10" stroke="%s" stroke-width="3"/>`, short(at.x), short(y-4), palette[i%len(palette)])
		c.text(at.x+14, y, "", p.lines[i].name)
	}
	return rows
}

// shades are the colours of a heat map, from few to many.
var shades = []string{"#fee8c8", "#fdcf9b", "#fdb071", "#f78550", "#e35933", "#b3301a"}

// heat draws cumulative buckets, from the lowest up, as cells.
func (p picture) heat(c *canvas, a area) {
	most, before := 0.0, map[int64]float64{}
	cells := make([]map[int64]float64, len(p.lines))
	for i, l := range p.lines {
		cells[i] = map[int64]float64{}
		for _, pt := range l.points {
			at := pt.at.Unix()
			if value := pt.value - before[at]; value > 1e-9 { // of rates, which are not exact
				cells[i][at] = value
				most = max(most, value)
			}
			before[at] = pt.value
		}
	}
	const columns = 40
	w, h := a.w/(columns+1), a.h/float64(len(p.lines))
	paths := make([]strings.Builder, len(shades))
	for i, row := range cells {
		y := a.y + a.h - float64(i+1)*h
		for _, pt := range p.lines[i].points {
			value := row[pt.at.Unix()]
			if value == 0 {
				continue
			}
			x := a.x + (a.w-w)*float64(pt.at.Sub(p.from))/float64(p.to.Sub(p.from))
			shade := min(len(shades)-1, int(math.Sqrt(value/most)*float64(len(shades))))
			fmt.Fprintf(&paths[shade], "M%s %sh%sv%sh-%sz", short(x), short(y), short(w), short(h), short(w))
		}
		if every := (len(cells) + 8) / 9; i%every == 0 {
			c.text(a.x-6, y+4, ` text-anchor="end"`, bound(p.lines[i].le, p.FieldConfig.Defaults.Unit))
		}
	}
	for i := range paths {
		if paths[i].Len() > 0 {
			c.printf(`<path d="%s" fill="%s"/>`, paths[i].String(), shades[i])
		}
	}
	c.printf(`<path d="M%s %sv%sh%s" fill="none" stroke="#ccc"/>`, short(a.x), short(a.y), short(a.h), short(a.w))
	p.times(c, a)
}

func bound(le float64, unit string) string {
	if math.IsInf(le, 1) {
		return "more"
	}
	return format(le, unit)
}

// tick is the distance of the lines of a grid that has at most five of them.
func tick(most float64, unit string) float64 {
	if most == 0 {
		return 1
	}
	if unit == "s" && most > 10 {
		for _, step := range []float64{5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400} {
			if most/step <= 4 {
				return step
			}
		}
	}
	step := math.Pow(10, math.Floor(math.Log10(most/4)))
	for _, factor := range []float64{1, 2, 5} {
		if most/(step*factor) <= 4.01 { // a power of ten is not exact
			return step * factor
		}
	}
	return step * 10
}

// format writes a value with its unit, as Grafana does.
func format(value float64, unit string) string {
	if math.IsNaN(value) {
		return "–"
	}
	suffix, isSuffix := strings.CutPrefix(unit, "suffix:")
	switch {
	case unit == "percentunit":
		return digits(value*100) + "%"
	case unit == "s":
		for _, u := range []struct {
			name string
			size float64
		}{{" d", 86400}, {" h", 3600}, {" min", 60}, {" s", 1}, {" ms", 1e-3}, {" µs", 1e-6}} {
			if value >= u.size {
				return digits(value/u.size) + u.name
			}
		}
		return digits(value) + " s"
	case isSuffix:
		return digits(value) + suffix
	case value >= 1e6:
		return digits(value/1e6) + " M"
	case value >= 1e4:
		return digits(value/1e3) + " k"
	}
	return digits(value)
}

// digits writes a number with three significant digits, or all those before the point.
func digits(value float64) string {
	if math.Abs(value) >= 100 {
		return strconv.FormatFloat(value, 'f', 0, 64)
	}
	return strconv.FormatFloat(value, 'g', 3, 64)
}
