// Board writes the Grafana board. panels.go lists its panels.
//
//	go run ./board > grafana.json
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	text, err := grafana()
	if err == nil {
		_, err = os.Stdout.Write(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "board:", err)
		os.Exit(1)
	}
}

type object = map[string]any

// grafana returns the board as Grafana imports it.
func grafana() ([]byte, error) {
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	to.SetEscapeHTML(false) // queries compare
	to.SetIndent("", "  ")
	err := to.Encode(object{
		"uid":           "delayq",
		"title":         "delayq",
		"description":   "Delay queues: what is late now, what flows, how late runs are, what falls due next, trouble, and outboxes.",
		"tags":          []string{"delayq", "redis", "queue"},
		"schemaVersion": 39, // of Grafana 11; newer ones migrate it when they load it
		"version":       1,
		"editable":      true,
		"graphTooltip":  1, // one crosshair in all panels
		"refresh":       "10s",
		"time":          object{"from": "now-1h", "to": "now"},
		"timezone":      "browser",
		"links": []object{{
			"title": "Alerts and what to do", "type": "link", "url": howto, "targetBlank": true, "icon": "doc", "tooltip": "",
			"asDropdown": false, "includeVars": false, "keepTime": false, "tags": []string{},
		}},
		"templating":  object{"list": variables()},
		"annotations": object{"list": annotations()},
		"panels":      panels(),
	})
	return text.Bytes(), err
}

var source = object{"type": "prometheus", "uid": "${datasource}"}

func variables() []object {
	return []object{
		{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
		query("prefix", "Prefix", `label_values(delayq_jobs, prefix)`),
		query("topic", "Topic", `label_values(delayq_jobs{prefix=~"$prefix"}, topic)`),
		query("outbox", "Outbox", `label_values(delayq_outbox_up, outbox)`),
	}
}

// query is a variable with the values of a label.
func query(name, label, expr string) object {
	return object{
		"name": name, "label": label, "type": "query", "datasource": source,
		"definition": expr, "query": object{"query": expr, "refId": name},
		"multi": true, "includeAll": true, "allValue": ".*",
		"current": object{"text": []string{"All"}, "value": []string{"$__all"}},
		"refresh": 2, "sort": 1, // when the time changes; by name
	}
}

func annotations() []object {
	return []object{
		annotation("Pauses", "orange", "{{topic}} is paused",
			state("delayq_paused", "prefix, topic")+" == 1"),
		annotation("Deploys", "blue", "version {{version}}",
			"count by (version) (delayq_build_info) unless count by (version) (delayq_build_info offset 5m)"),
	}
}

// annotation marks the times at which a query has series.
func annotation(name, colour, text, expr string) object {
	return object{
		"name": name, "enable": true, "iconColor": colour, "datasource": source,
		"expr": expr, "step": "60s", "titleFormat": name, "textFormat": text,
	}
}

// A grid gives panels their places, row by row.
type grid struct {
	list    []object
	x, y, h int
}

// row starts a row of panels under a title.
func (g *grid) row(title string) {
	g.y += g.h
	g.add(object{"type": "row", "title": title, "collapsed": false, "panels": []object{}}, 24, 1)
}

// add puts a panel to the right of the last one, or below it if it does not fit.
func (g *grid) add(panel object, w, h int) {
	if g.x+w > 24 || panel["type"] == "row" {
		if panel["type"] != "row" {
			g.y += g.h
		}
		g.x, g.h = 0, 0
	}
	panel["id"] = len(g.list) + 1
	panel["gridPos"] = object{"x": g.x, "y": g.y, "w": w, "h": h}
	g.list = append(g.list, panel)
	g.x, g.h = g.x+w, max(g.h, h)
}

// A curve is a query of a panel, and the name of its series.
type curve struct{ name, expr string }

func targets(curves []curve, more object) (list []object) {
	for i, c := range curves {
		target := object{"refId": string(rune('A' + i)), "datasource": source, "expr": c.expr, "legendFormat": c.name, "range": true, "editorMode": "code"}
		for key, value := range more {
			target[key] = value
		}
		list = append(list, target)
	}
	return list
}

// levels are thresholds: green, and other colours from a value on.
type levels struct{ yellow, red float64 } // zero: none

func (l levels) object() object {
	steps := []object{{"color": "green", "value": nil}}
	if l.yellow != 0 {
		steps = append(steps, object{"color": "yellow", "value": l.yellow})
	}
	if l.red != 0 {
		steps = append(steps, object{"color": "red", "value": l.red})
	}
	return object{"mode": "absolute", "steps": steps}
}

// stat is a single number.
func stat(title, description, unit, expr string, l levels) object {
	return object{
		"type": "stat", "title": title, "description": description, "datasource": source,
		"targets": targets([]curve{{"", expr}}, nil),
		"fieldConfig": object{"overrides": []object{}, "defaults": object{
			"unit": unit, "min": 0, "thresholds": l.object(), "color": object{"mode": "thresholds"},
		}},
		"options": object{
			"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
			"colorMode":     "value", "graphMode": "area", "textMode": "auto", "justifyMode": "auto", "orientation": "auto",
			"percentChangeColorMode": "standard", "showPercentChange": false, "wideLayout": true,
		},
	}
}

// graph has curves over time.
func graph(title, description, unit string, curves ...curve) object {
	return object{
		"type": "timeseries", "title": title, "description": description, "datasource": source,
		"targets": targets(curves, nil),
		"fieldConfig": object{"overrides": []object{}, "defaults": object{
			"unit": unit, "min": 0, "color": object{"mode": "palette-classic"},
			"custom": object{"drawStyle": "line", "lineWidth": 1, "fillOpacity": 8, "showPoints": "never"},
		}},
		"options": object{
			"legend":  object{"calcs": []string{}, "displayMode": "list", "placement": "bottom", "showLegend": true},
			"tooltip": object{"mode": "multi", "sort": "desc"},
		},
	}
}

func custom(panel object) object {
	return panel["fieldConfig"].(object)["defaults"].(object)["custom"].(object)
}

// stacked puts the curves of a graph on top of each other.
func stacked(panel object) object {
	custom(panel)["stacking"] = object{"mode": "normal", "group": "A"}
	custom(panel)["fillOpacity"] = 60
	return panel
}

// limited draws a line at a value.
func limited(panel object, most float64) object {
	custom(panel)["thresholdsStyle"] = object{"mode": "dashed"}
	panel["fieldConfig"].(object)["defaults"].(object)["thresholds"] = levels{red: most}.object()
	return panel
}

// heat shows the buckets of a histogram over time.
func heat(title, description, expr string) object {
	return object{
		"type": "heatmap", "title": title, "description": description, "datasource": source,
		"targets":     targets([]curve{{"{{le}}", expr}}, object{"format": "heatmap"}),
		"fieldConfig": object{"overrides": []object{}, "defaults": object{"unit": "s"}},
		"options": object{
			"calculate": false, "cellGap": 1, "showValue": "never",
			"yAxis":  object{"unit": "s", "axisPlacement": "left"},
			"legend": object{"show": true}, "tooltip": object{"mode": "single", "yHistogram": false},
			"exemplars": object{"color": "rgba(255,0,255,0.7)"}, "filterValues": object{"le": 1e-9},
			"color": object{
				"mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5, "steps": 64,
				"fill": "dark-orange", "reverse": false,
			},
		},
	}
}
