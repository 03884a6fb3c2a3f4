// Pictures draws the Grafana board without Grafana. It sends each query of the board to a
// Prometheus server and draws an SVG for each row of the board. docs/howto/monitoring.md shows
// them.
//
//	go run ./pictures -prometheus http://localhost:9090 -last 10m -out ../docs/board
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	server := flag.String("prometheus", "http://localhost:9090", "address of the Prometheus server")
	file := flag.String("board", "grafana.json", "the board")
	out := flag.String("out", "../docs/board", "directory for the pictures")
	last := flag.Duration("last", 10*time.Minute, "length of the time shown, which ends now")
	rate := flag.Duration("rate", time.Minute, "value of $__rate_interval")
	flag.Parse()
	end := time.Now()
	s := source{address: *server, from: end.Add(-*last), to: end, rate: *rate}
	if err := draw(context.Background(), s, *file, *out); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

// A board is what is drawn of grafana.json.
type board struct {
	Panels []panel `json:"panels"`
}

type panel struct {
	Title   string  `json:"title"`
	Type    string  `json:"type"`
	GridPos gridPos `json:"gridPos"`
	Targets []struct {
		Expr         string `json:"expr"`
		LegendFormat string `json:"legendFormat"`
	} `json:"targets"`
	FieldConfig struct {
		Defaults struct {
			Unit       string     `json:"unit"`
			Thresholds thresholds `json:"thresholds"`
			Custom     struct {
				Stacking struct {
					Mode string `json:"mode"`
				} `json:"stacking"`
				ThresholdsStyle struct {
					Mode string `json:"mode"`
				} `json:"thresholdsStyle"`
			} `json:"custom"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

type gridPos struct{ X, Y, W, H int }

type thresholds struct {
	Steps []struct {
		Color string   `json:"color"`
		Value *float64 `json:"value"` // null for the first
	} `json:"steps"`
}

// draw writes one file for each row of the board.
func draw(ctx context.Context, s source, file, out string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var b board
	if err := json.Unmarshal(text, &b); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var row string
	rows := map[string][]picture{}
	for _, p := range b.Panels {
		if p.Type == "row" {
			row = p.Title
			continue
		}
		step := s.to.Sub(s.from) / 120
		if p.Type == "heatmap" {
			step *= 3 // its cells have a width
		}
		lines, err := s.answers(ctx, p, step)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Title, err)
		}
		rows[row] = append(rows[row], picture{panel: p, lines: lines, from: s.from, to: s.to, step: step})
	}
	for title, pictures := range rows {
		path := filepath.Join(out, strings.ToLower(title)+".svg")
		if err := os.WriteFile(path, []byte(svg(title, pictures)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// A line is one series of a panel.
type line struct {
	name   string
	le     float64 // upper bound of a bucket
	points []point
}

type point struct {
	at    time.Time
	value float64
}

// A source answers the queries of panels.
type source struct {
	address  string
	from, to time.Time
	rate     time.Duration
}

// answers returns the series of all queries of a panel, with a point for each step.
func (s source) answers(ctx context.Context, p panel, step time.Duration) (list []line, err error) {
	for _, target := range p.Targets {
		series, err := s.query(ctx, target.Expr, step)
		if err != nil {
			return nil, err
		}
		for _, one := range series {
			l := line{name: legend(target.LegendFormat, one.Metric)}
			if l.le, err = strconv.ParseFloat(cmp.Or(one.Metric["le"], "0"), 64); err != nil {
				return nil, err
			}
			for _, pair := range one.Values {
				value, err := strconv.ParseFloat(pair.value, 64)
				if err != nil {
					return nil, err
				}
				l.points = append(l.points, point{at: time.UnixMilli(int64(pair.at * 1000)), value: value})
			}
			list = append(list, l)
		}
	}
	if p.Type == "heatmap" {
		slices.SortFunc(list, func(a, b line) int { return cmp.Compare(a.le, b.le) })
	}
	return list, nil
}

// legend fills in a format such as "{{topic}}".
func legend(format string, labels map[string]string) string {
	for name, value := range labels {
		format = strings.ReplaceAll(format, "{{"+name+"}}", value)
	}
	return format
}

type series struct {
	Metric map[string]string `json:"metric"`
	Values []pair            `json:"values"`
}

// A pair is a time in seconds and a number in a string.
type pair struct {
	at    float64
	value string
}

func (p *pair) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&p.at, &p.value})
}

func (s source) query(ctx context.Context, expr string, step time.Duration) ([]series, error) {
	expr = strings.NewReplacer(
		"$__rate_interval", promDuration(s.rate), "$__range", promDuration(s.to.Sub(s.from)), "$prefix", ".+", "$topic", ".+", "$outbox", ".+",
	).Replace(expr)
	address := s.address + "/api/v1/query_range?" + url.Values{
		"query": {expr}, "step": {strconv.FormatFloat(step.Seconds(), 'f', 3, 64)},
		"start": {strconv.FormatInt(s.from.Unix(), 10)}, "end": {strconv.FormatInt(s.to.Unix(), 10)},
	}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Error string `json:"error"`
		Data  struct {
			Result []series `json:"result"`
		} `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("%s: %w", resp.Status, err)
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	return answer.Data.Result, nil
}

// promDuration writes a duration of whole seconds for PromQL.
func promDuration(d time.Duration) string { return strconv.Itoa(int(d.Seconds())) + "s" }
