package delayqotel_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/queuetest"
	delayqotel "github.com/delayq/delayq/otel"
)

// open returns a client of an embedded Redis of the test's own.
func open(t *testing.T) *redis.Client {
	r := embedded.New()
	t.Cleanup(r.Close)
	rdb := r.Client()
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// The names in documents and tests are those of the conventions that are pinned.
func TestConventions(t *testing.T) {
	require.Equal(t, "https://opentelemetry.io/schemas/1.43.0", delayqotel.SchemaURL)
	var conventions []attribute.Key
	for name, key := range map[string]attribute.Key{
		"messaging.system": semconv.MessagingSystemKey, "messaging.destination.name": semconv.MessagingDestinationNameKey,
		"messaging.destination.template": semconv.MessagingDestinationTemplateKey, "messaging.operation.name": semconv.MessagingOperationNameKey,
		"messaging.operation.type": semconv.MessagingOperationTypeKey, "messaging.message.id": semconv.MessagingMessageIDKey,
		"messaging.message.body.size": semconv.MessagingMessageBodySizeKey, "messaging.client.id": semconv.MessagingClientIDKey,
		"messaging.batch.message_count": semconv.MessagingBatchMessageCountKey, "error.type": semconv.ErrorTypeKey,
		"server.address": semconv.ServerAddressKey, "server.port": semconv.ServerPortKey,
	} {
		require.Equal(t, name, string(key))
		conventions = append(conventions, key)
	}
	for value, attr := range map[string]attribute.KeyValue{
		"send": semconv.MessagingOperationTypeSend, "create": semconv.MessagingOperationTypeCreate,
		"process": semconv.MessagingOperationTypeProcess, "settle": semconv.MessagingOperationTypeSettle,
	} {
		require.Equal(t, value, attr.Value.AsString())
	}
	own := []attribute.Key{
		delayqotel.AttemptKey, delayqotel.DueKey, delayqotel.LatenessKey, delayqotel.OutcomeKey, delayqotel.RetryDelayKey,
		delayqotel.StateKey, delayqotel.ResultKey, delayqotel.FailedKey, delayqotel.LinkKey,
	}
	for _, key := range own {
		require.Regexp(t, `^messaging\.delayq(\.[a-z_]+)+$`, string(key))
	}

	guide, err := os.ReadFile("../docs/howto/tracing.md")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(guide), "| attribute | value |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var listed []string
	for _, name := range regexp.MustCompile("(?m)^\\| `([^|]*)` \\|").FindAllStringSubmatch(table, -1) {
		listed = append(listed, strings.Split(name[1], "`, `")...)
	}
	var want []string
	for _, key := range append(own, conventions...) {
		want = append(want, string(key))
	}
	require.ElementsMatch(t, want, listed)
}

// The header of a trace costs what the guide says.
func TestCostOfAHeader(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		size := func(id string, hooks ...delayq.Hook) int {
			client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(hooks...))
			enqueue(b, client, "t", id, delayq.ProcessIn(time.Hour))
			return len(b.RDB.HGet(b.Context(), queuetest.PoolKey("t"), id).Val())
		}
		guide, err := os.ReadFile("../docs/howto/tracing.md")
		require.NoError(b, err)
		require.Contains(b, string(guide), fmt.Sprintf("| `traceparent` | %d | always |", size("a", record().tracing())-size("b")))
	})
}
