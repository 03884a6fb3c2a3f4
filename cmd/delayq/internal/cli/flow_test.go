package cli

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A flow is shown as a tree while it goes on and when it has failed, and a group in parts.
func TestGoldenFlow(t *testing.T) {
	inWorld(t, func(w *world) {
		server := queuetest.ServeMany(w.T, w.RDB, queuetest.Prefix, func(s *delayq.Server) {
			for _, topic := range []string{"video", "video:done"} {
				require.NoError(w, s.HandlerFunc(topic, func(_ context.Context, job *delayq.Job) error {
					if string(job.Payload) == "torn" {
						return delayq.Permanent(errors.New("unexpected end\x1b[2J of the file"))
					}
					return job.SetOutput(job.Payload)
				}, delayq.Concurrency(1)))
			}
		})
		w.hidden = append(w.hidden, server.Server.ID(), "SERVER-3")
		f := delayq.NewFlow("video:done", "video-7", nil, delayq.Retry(3)).Deadline(time.Hour)
		fetch := f.AddJob("video", "fetch", []byte("1234"), delayq.ProcessIn(time.Second))
		small := f.AddJob("video", "360p", nil, delayq.ProcessIn(time.Minute)).After(fetch)
		large := f.AddJob("video", "2160p\xff", []byte("torn"), delayq.ProcessIn(2*time.Minute)).After(fetch)
		f.AddJob("video", "manifest", nil).After(small, large)
		f.AddJob("video", "tidy", nil).After(small, large).IgnoreFailures()
		_, err := w.Client.Start(w.Context(), f)
		require.NoError(w, err)
		w.Pass(10 * time.Second)
		w.every("flow", "video:done", "video-7")
		w.every("explain", "video:done", "video-7")
		w.show("job", "video", "360p")
		w.Pass(3 * time.Minute)
		w.show("flow", "video:done", "video-7")
		w.show("flow", "video:done", "video-7", "-o", "json")
		w.show("flow", "video:done", "gone")
		g, err := w.Client.OpenGroup(w.Context(), delayq.NewFlow("video:done", "group", nil).Deadline(time.Hour))
		require.NoError(w, err)
		require.NoError(w, g.Add(w.Context(), delayq.NewJob{Topic: "video", ID: "a"}, delayq.NewJob{Topic: "video", ID: "b"}))
		w.Pass(time.Second)
		w.show("flow", "video:done", "group")
		w.show("flow", "video:done", "group", "--from", "1")
		w.golden("flow")
	})
}
