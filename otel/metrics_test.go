package delayqotel_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	delayqotel "github.com/delayq/delayq/otel"
)

// A gauge is a meter provider that is read by hand.
type gauge struct {
	*sdkmetric.ManualReader
	provider *sdkmetric.MeterProvider
}

func measure() *gauge {
	reader := sdkmetric.NewManualReader()
	return &gauge{reader, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))}
}

// read returns all series: the name and the attributes, and the value. A histogram has its count.
func (g *gauge) read(t testing.TB) map[string]float64 {
	var all metricdata.ResourceMetrics
	require.NoError(t, g.Collect(t.Context(), &all))
	series := make(map[string]float64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			put := func(attrs attribute.Set, value float64) {
				var text []string
				for _, a := range attrs.ToSlice() {
					text = append(text, fmt.Sprintf("%s=%s", a.Key, a.Value.String()))
				}
				name := m.Name + "{" + strings.Join(text, " ") + "}"
				require.NotContains(t, series, name)
				series[name] = value
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					put(p.Attributes, float64(p.Value))
				}
			case metricdata.Sum[float64]:
				for _, p := range data.DataPoints {
					put(p.Attributes, p.Value)
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					put(p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					put(p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					put(p.Attributes, float64(p.Count))
				}
			default:
				t.Fatalf("%s is a %T", m.Name, data)
			}
		}
	}
	return series
}

// only returns the series of some metrics.
func only(series map[string]float64, names ...string) map[string]float64 {
	some := make(map[string]float64)
	for name, value := range series {
		metric, _, _ := strings.Cut(name, "{")
		if slices.Contains(names, metric) {
			some[name] = value
		}
	}
	return some
}

// The hook counts enqueues, cancellations, runs and calls.
func TestMetrics(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		g := measure()
		metrics := delayqotel.NewMetrics(delayqotel.MeterProvider(g.provider), delayqotel.ServerAddress("redis.example", 0))
		client, _ := serve(b, "mail", func(ctx context.Context, job *delayq.Job) error {
			time.Sleep(ms(100))
			switch job.ID {
			case "panic":
				panic("x")
			case "error":
				return errTest
			case "hangs":
				<-ctx.Done()
			}
			return nil
		}, []delayq.Hook{metrics}, delayq.Concurrency(10))
		for _, id := range []string{"a", "b", "panic", "error", "hangs"} {
			enqueue(b, client, "mail", id, delayq.Retry(0))
		}
		enqueue(b, client, "mail", "later", delayq.ProcessIn(time.Hour))
		_, err := client.Enqueue(b.Context(), "mail", "later", nil)
		require.ErrorIs(b, err, delayq.ErrDuplicate)
		_, err = client.Enqueue(b.Context(), "mail", "", nil, delayq.Timeout(-1))
		require.ErrorIs(b, err, delayq.ErrInvalid)
		for range 2 {
			_, _ = client.Dequeue(b.Context(), "mail", "later")
		}
		b.Pass(time.Second)
		require.Equal(b, 1.0, g.read(b)["delayq.running_jobs{topic=mail}"])
		_, err = client.Dequeue(b.Context(), "mail", "hangs")
		require.NoError(b, err)
		b.Pass(time.Second)

		const convention = "messaging.destination.name=mail messaging.operation.name="
		const address = " messaging.system=delayq server.address=redis.example"
		all := g.read(b)
		require.Equal(b, map[string]float64{
			"delayq.runs{outcome=acked topic=mail}": 2, "delayq.runs{outcome=buried topic=mail}": 2, "delayq.runs{outcome=cancelled topic=mail}": 1,
			"delayq.lateness{topic=mail}": 5, "delayq.early_runs{topic=mail}": 0, "delayq.run_duration{topic=mail}": 5,
			"delayq.running_jobs{topic=mail}": 0, "delayq.panics{topic=mail}": 1,
			"delayq.enqueues{result=stored topic=mail}": 6, "delayq.enqueues{result=duplicate topic=mail}": 1, "delayq.enqueues{result=invalid topic=mail}": 1,
			"delayq.cancels{result=scheduled topic=mail}": 1, "delayq.cancels{result=not_found topic=mail}": 1, "delayq.cancels{result=running topic=mail}": 1,
			"delayq.client_call_duration{call=enqueue}": 8, "delayq.client_call_duration{call=cancel}": 3,
			"messaging.client.sent.messages{" + convention + "enqueue messaging.operation.type=send" + address + "}":                               7,
			"messaging.client.sent.messages{error.type=invalid " + convention + "enqueue messaging.operation.type=send" + address + "}":            1,
			"messaging.client.operation.duration{" + convention + "enqueue messaging.operation.type=send" + address + "}":                          7,
			"messaging.client.operation.duration{error.type=invalid " + convention + "enqueue messaging.operation.type=send" + address + "}":       1,
			"messaging.client.operation.duration{" + convention + "cancel" + address + "}":                                                         3,
			"messaging.client.consumed.messages{" + convention + "process messaging.operation.type=process" + address + "}":                        5,
			"messaging.process.duration{" + convention + "process messaging.operation.type=process" + address + "}":                                3,
			"messaging.process.duration{error.type=panic " + convention + "process messaging.operation.type=process" + address + "}":               1,
			"messaging.process.duration{error.type=*errors.errorString " + convention + "process messaging.operation.type=process" + address + "}": 1,
		}, only(all, "delayq.runs", "delayq.lateness", "delayq.early_runs", "delayq.run_duration", "delayq.running_jobs", "delayq.panics",
			"delayq.enqueues", "delayq.cancels", "delayq.client_call_duration", "messaging.client.sent.messages",
			"messaging.client.operation.duration", "messaging.client.consumed.messages", "messaging.process.duration"))
		require.Positive(b, all["delayq.redis_call_duration{script=enqueue}"])
		require.NotContains(b, all, "delayq.redis_errors{script=enqueue}")
		b.Redis.SetError("LOADING by test")
		_, err = client.Dequeue(b.Context(), "mail", "x")
		require.ErrorIs(b, err, delayq.ErrUnknownOutcome)
		require.Equal(b, 1.0, g.read(b)["delayq.redis_errors{script=cancel}"])
		require.Equal(b, 1.0, g.read(b)["delayq.cancels{result=unknown topic=mail}"])
		b.Redis.SetError("")
	})
}

// The names, units and bounds are those of the conventions and of the Prometheus module.
func TestMetricNames(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		registry := prometheus.NewRegistry()
		reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
		require.NoError(b, err)
		provider := delayqotel.MeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
		client, _ := serve(b, "t", func(context.Context, *delayq.Job) error { panic("x") }, []delayq.Hook{delayqotel.NewMetrics(provider)})
		_, err = delayqotel.Observe(b.Inspector, provider)
		require.NoError(b, err)
		enqueue(b, client, "t", "x")
		require.NoError(b, client.Schedule(b.Context(), "t", "s", delayq.Every(time.Hour), nil))
		_, _ = client.Dequeue(b.Context(), "t", "y")
		b.Redis.SetError("LOADING by test")
		_, _ = client.Dequeue(b.Context(), "t", "y")
		b.Redis.SetError("")
		b.Pass(time.Minute)
		families, err := registry.Gather()
		require.NoError(b, err)
		got := make(map[string]string)
		for _, f := range families {
			var labels []string
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels = append(labels, l.GetName())
			}
			if name := f.GetName(); strings.HasPrefix(name, "delayq_") {
				got[name] = strings.ToLower(f.GetType().String()) + " " + strings.Join(labels, " ")
			}
		}
		require.Equal(b, map[string]string{
			"delayq_runs_total": "counter outcome topic", "delayq_lateness_seconds": "histogram topic", "delayq_early_runs_total": "counter topic",
			"delayq_run_duration_seconds": "histogram topic", "delayq_running_jobs": "gauge topic", "delayq_panics_total": "counter topic",
			"delayq_enqueues_total": "counter result topic", "delayq_cancels_total": "counter result topic",
			"delayq_client_call_duration_seconds": "histogram call", "delayq_redis_call_duration_seconds": "histogram script",
			"delayq_redis_errors_total": "counter script", "delayq_build_info": "gauge version",
			"delayq_jobs": "gauge prefix state topic", "delayq_retrying_jobs": "gauge prefix topic", "delayq_overdue_jobs": "gauge prefix topic",
			"delayq_oldest_overdue_seconds": "gauge prefix topic", "delayq_due_jobs": "gauge prefix topic within", "delayq_paused": "gauge prefix topic",
			"delayq_servers": "gauge prefix topic", "delayq_workers": "gauge prefix topic", "delayq_schedule_next_timestamp_seconds": "gauge prefix topic",
			"delayq_job_events_total": "counter event prefix topic", "delayq_leases_reclaimed_total": "counter prefix topic",
			"delayq_leases_dropped_total": "counter prefix topic", "delayq_pruned_jobs_total": "counter prefix state topic",
			"delayq_repairs_total": "counter prefix topic", "delayq_schedule_slots_total": "counter prefix result topic",
			"delayq_folded_topics": "gauge prefix", "delayq_redis_up": "gauge prefix", "delayq_collector_duration_seconds": "gauge prefix",
			"delayq_collector_last_success_timestamp_seconds": "gauge prefix", "delayq_collector_errors_total": "counter prefix",
		}, got)
	})
	for name, of := range map[string]interface {
		Name() string
		Unit() string
	}{
		"messaging.client.sent.messages {message}": messagingconv.ClientSentMessages{}, "messaging.client.consumed.messages {message}": messagingconv.ClientConsumedMessages{},
		"messaging.client.operation.duration s": messagingconv.ClientOperationDuration{}, "messaging.process.duration s": messagingconv.ProcessDuration{},
	} {
		require.Equal(t, name, of.Name()+" "+of.Unit())
	}
}

// Topics beyond the limit share their series, and those of one label are added up.
func TestManyTopics(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		g := measure()
		opts := []delayqotel.MetricsOption{
			delayqotel.MeterProvider(g.provider), delayqotel.MaxTopics(3), delayqotel.MinInterval(0),
			delayqotel.TopicLabel(func(topic string) string { label, _, _ := strings.Cut(topic, "."); return label }),
		}
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(delayqotel.NewMetrics(opts...)))
		registered, err := delayqotel.Observe(b.Inspector, opts...)
		require.NoError(b, err)
		for _, topic := range []string{"tenant.1", "tenant.2", "a", "b", "c", "d", "e"} {
			for at := range 2 {
				enqueue(b, client, topic, fmt.Sprint(at), delayq.ProcessIn(time.Duration(at)*30*time.Minute))
			}
		}
		b.Pass(time.Minute)
		all := g.read(b)
		require.Equal(b, map[string]float64{
			"delayq.enqueues{result=stored topic=tenant}": 4, "delayq.enqueues{result=stored topic=a}": 2,
			"delayq.enqueues{result=stored topic=b}": 2, "delayq.enqueues{result=stored topic=_other}": 6,
		}, only(all, "delayq.enqueues"))
		require.Equal(b, map[string]float64{
			"delayq.overdue_jobs{prefix=q topic=a}": 1, "delayq.overdue_jobs{prefix=q topic=b}": 1,
			"delayq.overdue_jobs{prefix=q topic=c}": 1, "delayq.overdue_jobs{prefix=q topic=_other}": 4,
			"delayq.oldest_overdue{prefix=q topic=a}": 60, "delayq.oldest_overdue{prefix=q topic=b}": 60,
			"delayq.oldest_overdue{prefix=q topic=c}": 60, "delayq.oldest_overdue{prefix=q topic=_other}": 60,
			"delayq.folded_topics{prefix=q}": 4,
		}, only(all, "delayq.overdue_jobs", "delayq.oldest_overdue", "delayq.folded_topics"))
		require.Equal(b, 4.0, all["delayq.due_jobs{prefix=q topic=_other within=1h}"])
		require.Equal(b, 0.0, all["delayq.due_jobs{prefix=q topic=_other within=1m}"])
		require.Contains(b, strings.Join(names(all), " "), "messaging.destination.template=tenant")
		require.NotContains(b, strings.Join(names(all), " "), "messaging.destination.name")

		// a topic that is gone makes room
		for at := range 2 {
			_, err := client.Dequeue(b.Context(), "a", fmt.Sprint(at))
			require.NoError(b, err)
		}
		require.NoError(b, client.RemoveTopic(b.Context(), "a"))
		all = g.read(b)
		require.NotContains(b, all, "delayq.overdue_jobs{prefix=q topic=a}")
		require.Equal(b, 1.0, all["delayq.overdue_jobs{prefix=q topic=c}"])
		require.Equal(b, 1.0, all["delayq.overdue_jobs{prefix=q topic=d}"])

		require.NoError(b, registered.Unregister())
		require.Empty(b, only(g.read(b), "delayq.overdue_jobs", "delayq.redis_up"))
	})
}

func names(series map[string]float64) (list []string) {
	for name := range series {
		list = append(list, name)
	}
	return list
}

// However many readers there are, the queue is looked at once per interval. While Redis does not
// answer, there are no numbers of it.
func TestObserve(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		g, calls := measure(), queuetest.CountScripts{}
		inspector := delayq.NewInspector(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(&calls))
		_, err := delayqotel.Observe(inspector, delayqotel.MeterProvider(g.provider))
		require.NoError(b, err)
		require.Equal(b, 1.0, g.read(b)["delayq.redis_up{prefix=q}"])
		require.Equal(b, 0.0, g.read(b)["delayq.folded_topics{prefix=q}"])
		b.Pass(time.Minute)
		b.Enqueue("mail", "x")
		for range 10 {
			require.Equal(b, 1.0, g.read(b)["delayq.jobs{prefix=q state=ready topic=mail}"])
		}
		require.Equal(b, 1, calls["inspect"])
		b.Enqueue("mail", "y")
		b.Pass(5 * time.Second)
		all := g.read(b)
		require.Equal(b, 2.0, all["delayq.jobs{prefix=q state=ready topic=mail}"])
		require.Equal(b, 2, calls["inspect"])

		before := all["delayq.collector_last_success_timestamp{prefix=q}"]
		b.Redis.SetError("LOADING by test")
		b.Pass(5 * time.Second)
		all = g.read(b)
		for name := range all {
			require.Regexp(b, `^delayq\.(redis_up|collector_.*)\{prefix=q}$`, name)
		}
		require.Equal(b, 0.0, all["delayq.redis_up{prefix=q}"])
		require.Equal(b, 1.0, all["delayq.collector_errors{prefix=q}"])
		require.Equal(b, before, all["delayq.collector_last_success_timestamp{prefix=q}"])

		b.Redis.SetError("")
		b.Pass(5 * time.Second)
		require.Equal(b, 2.0, g.read(b)["delayq.jobs{prefix=q state=ready topic=mail}"])
		require.Equal(b, 1.0, g.read(b)["delayq.redis_up{prefix=q}"])
	})
}

// Nil providers are the global ones, and a nil inspector is an error.
func TestMeterProviders(t *testing.T) {
	g, before := measure(), otel.GetMeterProvider()
	otel.SetMeterProvider(g.provider)
	t.Cleanup(func() { otel.SetMeterProvider(before) })
	delayqotel.NewMetrics(delayqotel.MeterProvider(nil), nil)
	require.NotEmpty(t, only(g.read(t), "delayq.build_info"))
	delayqotel.NewMetrics(delayqotel.MeterProvider(noop.NewMeterProvider()))
	_, err := delayqotel.Observe(nil)
	require.ErrorIs(t, err, delayq.ErrInvalid)
}
