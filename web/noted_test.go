package web_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// The page of a job and a list say how far it has come: with a bar if the end is known, without a
// script, and with a text that does nothing.
func TestPagesShowProgress(t *testing.T) {
	q := delayqtest.Start(t)
	stop := q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("scan", func(ctx context.Context, job *delayq.Job) error {
			total := int64(2100)
			if job.ID == "open" {
				total = 0
			}
			if err := job.Progress(1040, total, `page <script>alert(1)</script>`+"\x1b\n"); err != nil {
				return err
			}
			if job.ID == "half" {
				for _, name := range []string{"charge", `<b>mail</b>`} {
					if _, err := delayq.Step(ctx, job, name, func(context.Context, string) (string, error) { return "", nil }); err != nil {
						return err
					}
				}
			}
			return delayq.RetryIn(time.Hour, errors.New("no"))
		})
	})
	for _, id := range []string{"half", "open"} {
		_, err := q.Client.Enqueue(t.Context(), "scan", id, nil)
		require.NoError(t, err)
	}
	q.Advance(time.Minute)
	stop()
	_, err := q.Client.Enqueue(t.Context(), "scan", "none", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	h := page(t, q)
	read := func(page string, pairs ...string) string {
		t.Helper()
		w := get(t, h, link(page, append(pairs, "topic", "scan")...))
		require.Equal(t, http.StatusOK, w.Code)
		require.NotContains(t, w.Body.String(), "<script>alert")
		require.NotContains(t, w.Body.String(), "<b>mail")
		return w.Body.String()
	}
	const (
		bar  = `<progress max="2100" value="1040" aria-label="Progress">1,040/2,100</progress>`
		text = `page &lt;script&gt;alert(1)&lt;/script&gt;\x1b\n`
	)
	half := read("job", "id", "half")
	require.Contains(t, half, bar)
	require.Contains(t, half, text)
	require.Contains(t, half, `<dt>steps done</dt><dd><span class="mono">charge</span>, <span class="mono">&lt;b&gt;mail&lt;/b&gt;</span></dd>`)
	open := read("job", "id", "open")
	require.NotContains(t, open, "<progress")
	require.Contains(t, open, `<span class="num">1,040</span>`)
	require.NotContains(t, read("job", "id", "none"), "Progress")

	list := read("jobs", "state", "scheduled")
	require.Equal(t, 1, strings.Count(list, bar))
	require.Equal(t, 2, strings.Count(list, text))
	require.Contains(t, list, `<th scope="col">Progress</th>`)
	require.NotContains(t, read("jobs", "state", "dead"), "Progress")

	var record struct {
		Job struct {
			Progress struct {
				Done, Total int64
				Text        string
				At          time.Time
			}
			Steps []string
		}
	}
	require.NoError(t, json.Unmarshal([]byte(read("job.json", "id", "half")), &record))
	require.EqualValues(t, 1040, record.Job.Progress.Done)
	require.EqualValues(t, 2100, record.Job.Progress.Total)
	require.Equal(t, "page <script>alert(1)</script>\x1b\n", record.Job.Progress.Text)
	require.False(t, record.Job.Progress.At.IsZero())
	require.Equal(t, []string{"charge", "<b>mail</b>"}, record.Job.Steps)
}
