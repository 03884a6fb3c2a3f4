package delayqotel_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	delayqotel "github.com/delayq/delayq/otel"
)

// What a handler logs names its trace and its job. Other lines are unchanged.
func TestLogs(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var text bytes.Buffer
		log := slog.New(delayqotel.LogHandler(slog.NewJSONHandler(&text, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		}})))
		r := record()
		handler := func(ctx context.Context, job *delayq.Job) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			log.With("k", "v").InfoContext(ctx, "sent")
			log.Info("no context")
			log.WithGroup("g").DebugContext(ctx, "quiet")
			log.WithGroup("g").InfoContext(ctx, "grouped", "k", "v")
			return nil
		}
		client, _ := serve(b, "mail", handler, []delayq.Hook{r.tracing()})
		enqueue(b, client, "mail", "1")
		b.Pass(time.Second)
		serve(b, "bare", handler, []delayq.Hook{delayqotel.NewMetrics()})
		enqueue(b, client, "bare", "2")
		b.Pass(time.Second)
		log.InfoContext(b.Context(), "outside")

		sc := r.one(b, "process mail").SpanContext()
		var lines []map[string]any
		for dec := json.NewDecoder(&text); dec.More(); {
			var line map[string]any
			require.NoError(b, dec.Decode(&line))
			lines = append(lines, line)
		}
		trace := func(more map[string]any) map[string]any {
			more["trace_id"], more["span_id"], more["topic"], more["job"], more["attempt"] = sc.TraceID().String(), sc.SpanID().String(), "mail", "1", 1.0
			return more
		}
		job := func(more map[string]any) map[string]any {
			more["topic"], more["job"], more["attempt"] = "bare", "2", 1.0
			return more
		}
		require.Equal(b, []map[string]any{
			trace(map[string]any{"msg": "sent", "k": "v"}),
			{"msg": "no context"},
			{"msg": "grouped", "g": trace(map[string]any{"k": "v"})},
			job(map[string]any{"msg": "sent", "k": "v"}),
			{"msg": "no context"},
			{"msg": "grouped", "g": job(map[string]any{"k": "v"})},
			{"msg": "outside"},
		}, lines)
	})
}
