package web_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/web"
)

// Who keeps a page of a job open costs Redis its payload once in a minute, and again when the job
// has moved on.
func TestOpenPageOfALargeJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqtest.Start(t)
		ctx := t.Context()
		payload := strings.Repeat("x", 200_000)
		_, err := q.Client.Enqueue(ctx, "large", "one", []byte(payload), delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
		var seen, linked int
		h := page(t, q, web.Payload("*", web.Decoder{Name: "counted", Decode: func(_ string, b []byte) (string, error) {
			seen++
			return fmt.Sprint(len(b), " bytes"), nil
		}}), web.Links(func(j *delayq.JobInfo) []web.Link {
			linked++
			return []web.Link{{Text: fmt.Sprint("link of ", len(j.Payload)), URL: "https://logs.example"}}
		}))
		open := func(d time.Duration) {
			t.Helper()
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(2 * time.Second) {
				w := get(t, h, link("job", "topic", "large", "id", "one"))
				require.Equal(t, http.StatusOK, w.Code)
				require.Contains(t, w.Body.String(), "200000 bytes")
				require.Contains(t, w.Body.String(), "link of 200000")
			}
		}
		open(55 * time.Second)
		require.Equal(t, 1, seen)
		require.Equal(t, 1, linked)
		open(60 * time.Second)
		require.Equal(t, 2, seen)
		require.NoError(t, q.Client.Reschedule(ctx, "large", "one", delayq.ProcessIn(0)))
		open(10 * time.Second)
		require.Equal(t, 3, seen, "it is ready now")
		_, err = q.Client.Enqueue(ctx, "large", "one", []byte(payload), delayq.ProcessIn(0), delayq.Replace())
		require.NoError(t, err)
		open(10 * time.Second)
		require.Equal(t, 4, seen, "it is another job")
	})
}
