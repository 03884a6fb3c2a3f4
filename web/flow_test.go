package web_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/web"
)

// album returns a queue with a flow of a render step, two that wait for it, and one that has failed
// and whose failure is ignored. Names are hostile where they can be.
func album(t *testing.T) *delayqtest.TestQueue {
	q := delayqtest.Start(t)
	stop := q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("render", func(context.Context, *delayq.Job) error { return nil })
		s.HandlerFunc("sign", func(context.Context, *delayq.Job) error {
			return delayq.Permanent(errors.New("no <script>alert(1)</script> key"))
		})
		s.HandlerFunc("album:done", func(context.Context, *delayq.Job) error { return nil })
	})
	f := delayq.NewFlow("album:done", evilID, nil).Deadline(time.Hour)
	render := f.AddJob("render", "r", nil)
	sign := f.AddJob("sign", evilID, nil).After(render)
	f.AddJob("archive <b>", "a", nil).After(render)
	f.AddJob("clean", "c", nil).After(sign).IgnoreFailures()
	_, err := q.Client.Start(t.Context(), f)
	require.NoError(t, err)
	q.Advance(time.Minute)
	stop()
	return q
}

// The page of a flow draws it, marks what holds it up and lists its steps, without a script.
func TestPageOfAFlow(t *testing.T) {
	q := album(t)
	h := page(t, q)
	target := link("flow", "topic", "album:done", "id", evilID)
	w := get(t, h, target)
	require.Equal(t, http.StatusOK, w.Code)
	text := w.Body.String()
	require.NotContains(t, text, "<script>alert")
	require.Contains(t, text, `<svg class="flow"`)
	require.Contains(t, text, `class="box done"`)
	require.Contains(t, text, `class="box dead"`)
	require.Contains(t, text, `class="box started held"`)
	require.Contains(t, text, `class="box last open held"`)
	require.Contains(t, text, "2 of 4 steps have not ended")
	require.Contains(t, text, "no &lt;script&gt;")
	root, err := html.Parse(strings.NewReader(text))
	require.NoError(t, err)
	inert(t, "flow", root)
	chinese := get(t, h, target, func(r *http.Request) { r.Header.Set("Accept-Language", "zh-CN") }).Body.String()
	require.Contains(t, chinese, "4 个步骤中有 2 个未结束")

	var answer struct {
		State string
		Left  int
		Steps []struct{ ID, State string }
	}
	require.NoError(t, json.Unmarshal(get(t, h, link("flow.json", "topic", "album:done", "id", evilID)).Body.Bytes(), &answer))
	require.Equal(t, "open", answer.State)
	require.Len(t, answer.Steps, 4)
	require.Equal(t, "dead", answer.Steps[1].State)
	require.Equal(t, "started", answer.Steps[2].State)

	step := get(t, h, link("job", "topic", "archive <b>", "id", "a")).Body.String()
	require.Contains(t, step, `href="flow?`)
	require.Equal(t, http.StatusNotFound, get(t, h, link("flow", "topic", "album:done", "id", "none")).Code)
	require.Equal(t, http.StatusBadRequest, get(t, h, target+"&from=x").Code)
}

// Steps of topics that the viewer may not see are boxes without a name.
func TestPageOfAFlowHidesTopics(t *testing.T) {
	q := album(t)
	h := page(t, q, web.Visible(func(_ *http.Request, topic string) bool { return topic != "sign" }))
	text := get(t, h, link("flow", "topic", "album:done", "id", evilID)).Body.String()
	require.Contains(t, text, "hidden")
	require.NotContains(t, text, "no &lt;script&gt;")
	require.NotContains(t, text, ">sign")
}

// A flow of many steps is folded, and its steps are listed by pages.
func TestPageOfALargeFlow(t *testing.T) {
	q := delayqtest.Start(t)
	f := delayq.NewFlow("done", "big", nil).Deadline(time.Hour)
	first := f.Add("split", nil)
	for range 500 {
		f.Add("image", nil).After(first)
	}
	_, err := q.Client.Start(t.Context(), f)
	require.NoError(t, err)
	h := page(t, q)
	target := link("flow", "topic", "done", "id", "big")
	text := get(t, h, target).Body.String()
	require.Equal(t, 3, strings.Count(text, `<g class="box`))
	require.Contains(t, text, "500 × image")
	require.Equal(t, 200, strings.Count(text, `<tr id="s-`))
	last := get(t, h, target+"&from=400").Body.String()
	require.Equal(t, 101, strings.Count(last, `<tr id="s-`))
	require.Contains(t, last, fmt.Sprintf(`id="s-%d"`, 500))
	require.NotContains(t, last, `rel="next"`)
}
