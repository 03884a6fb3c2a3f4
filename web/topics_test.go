package web_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/web"
)

type topicsAnswer struct {
	Totals struct{ Scheduled, Dead int }
	Topics []struct{ Topic string }
	Groups []struct {
		Prefix, Topic, Status string
		Count, Scheduled      int
		Hour                  int       `json:"due_within_hour"`
		Next                  time.Time `json:"next_due"`
	}
}

func (p *topicsAnswer) names() (list []string) {
	for _, t := range p.Topics {
		list = append(list, t.Topic)
	}
	for _, g := range p.Groups {
		list = append(list, g.Prefix+g.Topic)
	}
	return list
}

// The overview can be filtered, sorted and grouped, by links that can be kept.
func TestTopicsAreFilteredSortedAndGrouped(t *testing.T) {
	q := delayqtest.Start(t)
	ctx := t.Context()
	for topic, in := range map[string][]time.Duration{
		"mail:a": {time.Hour * 3, 30 * time.Minute}, "mail:b": {2 * time.Hour}, "Mail.c": {time.Hour * 5}, "solo": {4 * time.Hour, 4 * time.Hour, 4 * time.Hour},
		"order:x": {20 * time.Minute}, ":odd": {6 * time.Hour}, "tail:": {7 * time.Hour},
	} {
		for _, d := range in {
			_, err := q.Client.Enqueue(ctx, topic, "", nil, delayq.ProcessIn(d))
			require.NoError(t, err)
		}
	}
	_, err := q.Client.Enqueue(ctx, "mail:b", "dead", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	require.NoError(t, q.Client.Bury(ctx, "mail:b", "dead", "x"))
	require.NoError(t, q.Client.Pause(ctx, "mail:a", delayq.Pause{By: "x"}))
	h := page(t, q, web.Actions(q.Client))
	ask := func(pairs ...string) (p topicsAnswer) {
		t.Helper()
		w := get(t, h, link("topics.json", pairs...))
		require.Equal(t, http.StatusOK, w.Code, w.Body.String())
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		return p
	}
	p := ask()
	require.Equal(t, []string{":odd", "Mail.c", "mail:a", "mail:b", "order:x", "solo", "tail:"}, p.names())
	p = ask("q", "MAIL")
	require.Equal(t, []string{"Mail.c", "mail:a", "mail:b"}, p.names())
	require.Equal(t, 4, p.Totals.Scheduled, "the sums are of what is selected")
	require.Equal(t, 1, p.Totals.Dead)
	require.Equal(t, []string{"mail:a", "mail:b"}, names(ask("in", "mail:")))
	require.Equal(t, []string{"solo", "mail:a"}, names(ask("sort", "scheduled"))[:2])
	require.Equal(t, []string{"mail:b"}, names(ask("sort", "dead"))[:1])
	require.Equal(t, []string{"mail:a"}, names(ask("sort", "status"))[:1])
	require.Equal(t, []string{"order:x", "mail:a", "mail:b", "solo", "Mail.c", ":odd", "tail:"}, names(ask("sort", "next")))
	require.Equal(t, []string{"tail:", ":odd", "Mail.c", "solo", "mail:b", "mail:a", "order:x"}, names(ask("sort", "-next")))
	require.Equal(t, []string{"tail:", "solo"}, names(ask("sort", "-topic"))[:2])
	require.Equal(t, http.StatusBadRequest, get(t, h, link("topics", "sort", "colour")).Code)

	p = ask("group", "1", "sort", "scheduled")
	require.Empty(t, p.Topics)
	require.Equal(t, []string{"mail:mail:", "solo"}, p.names()[:2])
	g := p.Groups[0]
	require.Equal(t, []int{2, 3, 1}, []int{g.Count, g.Scheduled, g.Hour})
	require.Equal(t, "paused", g.Status, "the most urgent one")
	require.WithinDuration(t, q.Now().Add(30*time.Minute), g.Next, time.Minute)
	require.Len(t, p.Groups, 6)

	// The links of the page lead there.
	links := func(target string) (list []string) {
		root, err := html.Parse(strings.NewReader(get(t, h, target).Body.String()))
		require.NoError(t, err)
		walk(root, func(n *html.Node) {
			if ref, _ := attr(n, "href"); strings.HasPrefix(ref, "topics?") {
				u, err := url.Parse(ref)
				require.NoError(t, err)
				list = append(list, u.Query().Encode())
			}
		})
		return list
	}
	list := links(link("topics", "q", "mail", "sort", "dead"))
	for _, want := range []string{"q=mail&sort=-dead", "q=mail&sort=topic", "group=1&q=mail&sort=dead", "sort=dead"} {
		require.True(t, slices.Contains(list, want), "%s: %v", want, list)
	}
	require.True(t, slices.Contains(links(link("topics", "group", "1")), "in=mail%3A"))
	require.Contains(t, get(t, h, link("topics", "sort", "-scheduled")).Body.String(), `class="n" aria-sort="ascending"`)
	require.Contains(t, get(t, h, link("topics", "q", "zzz")).Body.String(), "No topic matches.")
	require.Contains(t, get(t, h, link("topics", "q", `"><b>`)).Body.String(), `value="&#34;&gt;&lt;b&gt;"`)
}

func names(p topicsAnswer) []string { return p.names() }
