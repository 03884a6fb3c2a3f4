package web_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/web"
)

// parted divides the topic "mail" twice, and enqueues jobs of each generation.
func parted(t *testing.T, c *delayq.Client) {
	ctx := t.Context()
	put := func(id string, opts ...delayq.JobOption) {
		t.Helper()
		_, err := c.Enqueue(ctx, "mail", id, nil, append(opts, delayq.ProcessIn(time.Hour))...)
		require.NoError(t, err)
	}
	put("home")
	require.NoError(t, c.Partition(ctx, "mail", 2))
	put("first-1")
	put("first-2")
	_, err := c.Dequeue(ctx, "mail", "first-2", delayq.Tombstone(time.Hour))
	require.NoError(t, err)
	require.NoError(t, c.Partition(ctx, "mail", 3, delayq.ByKey()))
	for i := range 4 { // all in one partition
		put(fmt.Sprint("keyed-", i), delayq.Key("k"))
	}
}

// pageOf returns the page of a queue on a fake clock.
func pageOf(b *queuetest.Bubble, opts ...web.Option) *web.Handler {
	h, err := web.New(b.Inspector, opts...)
	require.NoError(b, err)
	b.Cleanup(h.Close)
	return h
}

// text returns what a page says, with a space between elements.
func text(t *testing.T, page string) string {
	root, err := html.Parse(strings.NewReader(page))
	require.NoError(t, err)
	var all []string
	walk(root, func(n *html.Node) {
		for c := n.FirstChild; c != nil; c = c.NextSibling {
			if c.Type == html.TextNode {
				all = append(all, strings.Fields(c.Data)...)
			}
		}
	})
	return strings.Join(all, " ")
}

func TestGoldenPagesOfPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqtest.Start(t)
		parted(t, q.Client)
		h := page(t, q)
		golden(t, h, "partitions", link("topic", "topic", "mail"))
		golden(t, h, "partition", link("job", "topic", "mail", "id", "first-1"))
	})
}

// The page of a topic shows its partitions in a few numbers, in both languages. That of a topic
// that is not divided says nothing about them.
func TestTopicShowsPartitions(t *testing.T) {
	q := delayqtest.Start(t)
	parted(t, q.Client)
	_, err := q.Client.Enqueue(t.Context(), "plain", "1", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	require.NoError(t, q.Client.Partition(t.Context(), "one", 1))
	h := page(t, q)
	show := func(topic, lang string) string {
		t.Helper()
		return text(t, get(t, h, link("topic", "topic", topic, "lang", lang)).Body.String())
	}
	busy, err := q.Inspector.Explain(t.Context(), "mail", "keyed-0")
	require.NoError(t, err)
	at := busy.Partition.Index
	least := 0
	if at == 0 {
		least = 1
	}
	en := show("mail", "en")
	for _, want := range []string{
		"Partitions A job belongs to one of 3 partitions by its key, and by its ID if it has none.",
		fmt.Sprintf("most loaded %d of generation 2 4 0 0 least loaded %d of generation 2 0 0 0", at, least),
		"Partitions that close They take no new jobs",
		"the undivided topic – 1 0 1 2, by ID 1 1 Forecast",
	} {
		require.Contains(t, en, want)
	}
	zh := show("mail", "zh-CN")
	for _, want := range []string{
		"分区 任务按分组键分到 3 个分区；没有分组键的按 ID。", fmt.Sprintf("负载最高 第 2 代的 %d 号 4 0 0", at), "分区之前的主题 – 1 0 1 2 个，按 ID 1 1",
	} {
		require.Contains(t, zh, want)
	}
	one := show("one", "en")
	require.Contains(t, one, "A job belongs to one of 1 partition by its ID.")
	require.Contains(t, one, "least and most loaded 0 of generation 1 0 0 0")
	require.Contains(t, one, "the undivided topic – 0 0", "until servers retire it")
	require.NotContains(t, show("plain", "en"), "artition")
	require.NotContains(t, show("nothing", "en"), "artition")

	var shown struct {
		Partitions struct {
			Count       int
			ByKey       bool                                           `json:"by_key"`
			LeastLoaded struct{ Generation, Index, Jobs int }          `json:"least_loaded"`
			MostLoaded  struct{ Generation, Index, Jobs, Overdue int } `json:"most_loaded"`
			Closing     []struct {
				Generation, Count, Jobs, Kept int
				ByKey                         bool `json:"by_key"`
			}
		}
	}
	require.NoError(t, json.Unmarshal(get(t, h, link("topic.json", "topic", "mail")).Body.Bytes(), &shown))
	p := shown.Partitions
	require.Equal(t, 3, p.Count)
	require.True(t, p.ByKey)
	require.Equal(t, []int{2, at, 4}, []int{p.MostLoaded.Generation, p.MostLoaded.Index, p.MostLoaded.Jobs})
	require.Equal(t, []int{2, least, 0}, []int{p.LeastLoaded.Generation, p.LeastLoaded.Index, p.LeastLoaded.Jobs})
	require.Len(t, p.Closing, 2)
	require.Equal(t, []int{0, 1, 1, 0}, []int{p.Closing[0].Generation, p.Closing[0].Count, p.Closing[0].Jobs, p.Closing[0].Kept})
	require.Equal(t, []int{1, 2, 1, 1}, []int{p.Closing[1].Generation, p.Closing[1].Count, p.Closing[1].Jobs, p.Closing[1].Kept})
	require.NotContains(t, get(t, h, link("topic.json", "topic", "plain")).Body.String(), "partitions")
}

// The page of a job names its partition, and says which reasons are about it alone.
func TestJobShowsItsPartition(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		parted(b.T, b.Client)
		ctx := b.Context()
		require.NoError(b, b.Client.Partition(ctx, "order", 2))
		require.NoError(b, b.Client.SetLimits(ctx, "order", delayq.Limits{Running: 3})) // one of the topic itself
		release := make(chan struct{})
		server := b.Serve("order", func(context.Context, *delayq.Job) error { <-release; return nil }, delayq.Concurrency(10))
		for i := range 6 {
			b.Enqueue("order", fmt.Sprint("o-", i))
		}
		b.Pass(time.Second)
		h := pageOf(b)
		show := func(topic, id, lang string) string {
			b.Helper()
			return text(b.T, get(b, h, link("job", "topic", topic, "id", id, "lang", lang)).Body.String())
		}
		waiting := queuetest.JobsOf(b, b.Inspector, "order", delayq.StateReady)
		require.NotEmpty(b, waiting)
		held := waiting[len(waiting)-1].ID
		e, err := b.Inspector.Explain(ctx, "order", held)
		require.NoError(b, err)
		require.Equal(b, 1, e.Partition.Generation)
		en := show("order", held, "en")
		require.Contains(b, en, fmt.Sprintf("partition %d of generation 1 ", e.Partition.Index))
		require.Contains(b, en, "limit of running jobs, share 1 of 3")
		require.Contains(b, en, "others come first, in its partition")
		zh := show("order", held, "zh-CN")
		require.Contains(b, zh, fmt.Sprintf("分区 第 1 代的 %d 号", e.Partition.Index))
		require.Contains(b, zh, "就绪：达到并发上限（分区份额 1，主题共 3）、前面还有任务（所在分区内）")
		var shown struct {
			Partition *struct{ Generation, Index int }
			Reasons   []struct {
				Code  string
				In    bool `json:"in_partition"`
				Share int
				Whole int `json:"limit_of_topic"`
			}
		}
		require.NoError(b, json.Unmarshal(get(b, h, link("job.json", "topic", "order", "id", held)).Body.Bytes(), &shown))
		require.Equal(b, e.Partition.Index, shown.Partition.Index)
		require.Equal(b, "topic_limit", shown.Reasons[0].Code)
		require.True(b, shown.Reasons[0].In)
		require.Equal(b, []int{1, 3}, []int{shown.Reasons[0].Share, shown.Reasons[0].Whole})
		close(release)
		require.NoError(b, server.Stop())

		for id, want := range map[string]int{"home": 0, "first-1": 1, "keyed-0": 2} {
			text := show("mail", id, "zh-CN")
			if want == 0 {
				require.NotContains(b, text, "号", id)
				require.NotContains(b, get(b, h, link("job.json", "topic", "mail", "id", id)).Body.String(), `"partition"`)
				continue
			}
			require.Contains(b, text, fmt.Sprintf("第 %d 代的", want), id)
		}
	})
}

// Every page and act of a topic with partitions is about the topic: whatever the page is asked, it
// names no partition as a topic, and it finds each job.
func TestPagesOfPartitions(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		parted(b.T, b.Client)
		ctx := b.Context()
		require.NoError(b, b.Client.Schedule(ctx, "mail", "nightly", delayq.Every(time.Hour), nil))
		require.NoError(b, b.Client.Bury(ctx, "mail", "keyed-3", "a test"))
		server := b.Serve("mail", queuetest.Nothing)
		b.Pass(time.Second)
		h := pageOf(b, web.Actions(b.Client))
		targets := []string{
			"topics", link("topic", "topic", "mail"), link("jobs", "topic", "mail", "state", "scheduled"), link("jobs", "topic", "mail", "state", "dead"),
			link("failures", "topic", "mail"), link("keys", "topic", "mail"), link("key", "topic", "mail", "key", "k"), "servers", "schedules",
			link("schedule", "topic", "mail", "name", "nightly"), link("find", "id", "first-1"), link("job", "topic", "mail", "id", "home"),
			link("job", "topic", "mail", "id", "first-1"), link("job", "topic", "mail", "id", "keyed-0"), "audit", "redis",
			link("confirm", "do", "cancel", "topic", "mail", "state", "scheduled", "all", "1"),
		}
		clean := func() {
			b.Helper()
			for _, target := range targets {
				name, query, _ := strings.Cut(strings.TrimPrefix(target, "/"), "?")
				for _, target := range []string{"/" + name + "?" + query, "/" + name + ".json?" + query} {
					w := get(b, h, target)
					require.Less(b, w.Code, http.StatusBadRequest, target)
					require.NotContains(b, w.Body.String(), "mail#", target)
					require.NotContains(b, w.Body.String(), "mail%23", target)
					if root, err := html.Parse(strings.NewReader(w.Body.String())); err == nil {
						inert(b.T, target, root)
					}
				}
			}
		}
		clean()
		require.Contains(b, get(b, h, "/servers").Body.String(), "mail")
		for _, id := range []string{"home", "first-1", "keyed-0"} {
			w := post(b, h, link("act", "do", "reschedule", "topic", "mail", "state", "scheduled", "id", id), url.Values{"in": {"1m"}})
			require.Equal(b, http.StatusSeeOther, w.Code, w.Body.String())
		}
		clean()
		w := post(b, h, link("act", "do", "cancel", "topic", "mail", "state", "scheduled", "id", "first-1"), nil)
		require.Equal(b, http.StatusSeeOther, w.Code, w.Body.String())
		_, err := b.Inspector.Job(ctx, "mail", "first-1")
		require.ErrorIs(b, err, delayq.ErrNotFound)
		w = post(b, h, link("act", "do", "revive", "topic", "mail", "state", "dead", "id", "keyed-3"), nil)
		require.Equal(b, http.StatusSeeOther, w.Code, w.Body.String())
		b.Pass(2 * time.Minute)
		require.EqualValues(b, 3, b.Counter("mail", delayq.CounterAcked), "home, keyed-0 and keyed-3")
		require.NoError(b, server.Stop())
	})
}

// A topic that is divided before its first job is there.
func TestDividedTopicIsKnown(t *testing.T) {
	q := delayqtest.Start(t)
	require.NoError(t, q.Client.Partition(t.Context(), "early", 2))
	h := page(t, q, web.Actions(q.Client))
	require.NotContains(t, text(t, get(t, h, link("topic", "topic", "early")).Body.String()), "There is no topic")
	require.Equal(t, http.StatusOK, get(t, h, link("edit-topic", "topic", "early", "do", "limits")).Code)
}
