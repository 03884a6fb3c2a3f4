package delayqotel_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
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
	"github.com/delayq/delayq/prom"
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

// counted returns the series of some metrics that are not 0.
func counted(series map[string]float64, names ...string) map[string]float64 {
	some := only(series, names...)
	maps.DeleteFunc(some, func(_ string, value float64) bool { return value == 0 })
	return some
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
			"delayq.lateness{topic=mail}": 5, "delayq.run_duration{topic=mail}": 5,
			"delayq.panics{topic=mail}":                 1,
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
		}, counted(all, "delayq.runs", "delayq.lateness", "delayq.early_runs", "delayq.run_duration", "delayq.running_jobs", "delayq.panics",
			"delayq.enqueues", "delayq.cancels", "delayq.client_call_duration", "messaging.client.sent.messages",
			"messaging.client.operation.duration", "messaging.client.consumed.messages", "messaging.process.duration"))
		require.Positive(b, all["delayq.redis_call_duration{script=enqueue}"])
		require.Equal(b, 0.0, all["delayq.redis_errors{script=enqueue}"])
		b.Redis.SetError("LOADING by test")
		_, err = client.Dequeue(b.Context(), "mail", "x")
		require.ErrorIs(b, err, delayq.ErrUnknownOutcome)
		require.Equal(b, 1.0, g.read(b)["delayq.redis_errors{script=cancel}"])
		require.Equal(b, 1.0, g.read(b)["delayq.cancels{result=unknown topic=mail}"])
		b.Redis.SetError("")
	})
}

// flat returns the series of a registry: with the types and the help, and with the values unless
// they are measured times. A histogram has its bounds and its count.
func flat(t require.TestingT, registry *prometheus.Registry) map[string]string {
	families, err := registry.Gather()
	require.NoError(t, err)
	all := make(map[string]string)
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "delayq_") {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			slices.Sort(labels)
			value := fmt.Sprint(m.GetCounter().GetValue(), m.GetGauge().GetValue())
			if f.GetName() == "delayq_collector_duration_seconds" {
				value = "?"
			}
			if h := m.GetHistogram(); h != nil {
				value = fmt.Sprint(h.GetSampleCount())
				for _, b := range h.GetBucket() {
					if !math.IsInf(b.GetUpperBound(), 1) {
						value += fmt.Sprint(" ", b.GetUpperBound())
					}
				}
			}
			all[f.GetName()+"{"+strings.Join(labels, " ")+"}"] = strings.Join([]string{f.GetType().String(), value, f.GetHelp()}, " ")
		}
	}
	return all
}

// A backend that translates names for Prometheus has the same series as the Prometheus module, with
// the same values.
func TestSameAsPrometheus(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		theirs, ours := prometheus.NewRegistry(), prometheus.NewRegistry()
		reader, err := exporter.New(exporter.WithRegisterer(ours), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
		require.NoError(b, err)
		label := func(topic string) string { label, _, _ := strings.Cut(topic, "."); return label }
		opts := []delayqotel.MetricsOption{
			delayqotel.MeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))),
			delayqotel.MaxTopics(3), delayqotel.TopicLabel(label),
		}
		hook := prom.NewMetrics(prom.MaxTopics(3), prom.TopicLabel(label))
		hooks := []delayq.Hook{hook, delayqotel.NewMetrics(opts...)}
		require.NoError(b, theirs.Register(hook))
		require.NoError(b, theirs.Register(prom.NewCollector(b.Inspector, prom.MaxTopics(3), prom.TopicLabel(label))))
		_, err = delayqotel.Observe(b.Inspector, opts...)
		require.NoError(b, err)
		same := func() {
			b.Helper()
			b.Pass(10 * time.Second)
			want := flat(b, theirs)
			require.GreaterOrEqual(b, len(want), 6)
			require.Equal(b, want, flat(b, ours))
		}
		same()
		client, _ := serve(b, "t", func(ctx context.Context, job *delayq.Job) error {
			time.Sleep(ms(10))
			switch job.ID {
			case "panic":
				panic("x")
			case "error":
				return errTest
			case "snooze":
				return delayq.Snooze(time.Hour)
			case "hangs":
				<-ctx.Done()
			}
			return nil
		}, hooks, delayq.Concurrency(3))
		same()
		for _, id := range []string{"ok", "panic", "error", "snooze", "hangs"} {
			enqueue(b, client, "t", id, delayq.Retry(1))
		}
		require.NoError(b, client.Schedule(b.Context(), "t", "s", delayq.Every(time.Minute), nil))
		same()
		for _, topic := range []string{"tenant.1", "tenant.2", "b", "c", "d"} {
			for at := range 3 {
				enqueue(b, client, topic, fmt.Sprint(at), delayq.ProcessIn(time.Duration(at)*20*time.Minute))
			}
		}
		_, err = client.Dequeue(b.Context(), "t", "hangs")
		require.NoError(b, err)
		_, err = client.Dequeue(b.Context(), "t", "nothing")
		require.ErrorIs(b, err, delayq.ErrNotFound)
		_, err = client.Dequeue(b.Context(), "x{", "nothing")
		require.ErrorIs(b, err, delayq.ErrInvalid)
		_, err = client.Enqueue(b.Context(), "y{", "x", nil)
		require.ErrorIs(b, err, delayq.ErrInvalid)
		require.NoError(b, client.Pause(b.Context(), "tenant.1", delayq.Pause{}))
		require.NoError(b, client.Pause(b.Context(), "d", delayq.Pause{}))
		same()
		require.NoError(b, client.Pause(b.Context(), "tenant.2", delayq.Pause{}))
		b.Pass(25 * time.Minute)
		same()
		for at := range 3 { // a counter does not fall when one of its topics is gone
			_, err := client.Dequeue(b.Context(), "tenant.1", fmt.Sprint(at))
			require.NoError(b, err)
			_, err = client.Dequeue(b.Context(), "b", fmt.Sprint(at))
			require.NoError(b, err)
		}
		same()
		require.NoError(b, client.RemoveTopic(b.Context(), "tenant.1"))
		require.NoError(b, client.RemoveTopic(b.Context(), "b"))
		same()
		b.Redis.SetError("LOADING by test")
		_, _ = client.Dequeue(b.Context(), "t", "y")
		b.Pass(10 * time.Second)
		want := flat(b, theirs)
		require.NotContains(b, want, "delayq_jobs{prefix=q state=dead topic=t}")
		got := flat(b, ours)
		b.Redis.SetError("")
		require.NotContains(b, got, "delayq_jobs{prefix=q state=dead topic=t}")
		require.Equal(b, want["delayq_redis_up{prefix=q}"], got["delayq_redis_up{prefix=q}"])
		require.Equal(b, want["delayq_collector_errors_total{prefix=q}"], got["delayq_collector_errors_total{prefix=q}"])
		same()
	})
}

// The metrics of the conventions have their names, units and bounds.
func TestConventionMetrics(t *testing.T) {
	for name, of := range map[string]interface {
		Name() string
		Unit() string
	}{
		"messaging.client.sent.messages {message}": messagingconv.ClientSentMessages{}, "messaging.client.consumed.messages {message}": messagingconv.ClientConsumedMessages{},
		"messaging.client.operation.duration s": messagingconv.ClientOperationDuration{}, "messaging.process.duration s": messagingconv.ProcessDuration{},
	} {
		require.Equal(t, name, of.Name()+" "+of.Unit())
	}
	g := measure()
	m := delayqotel.NewMetrics(delayqotel.MeterProvider(g.provider))
	_, end := m.Call(t.Context(), delayq.CallEvent{Name: "enqueue", Topic: "mail"})
	end(delayq.CallResult{})
	_, done := m.Run(t.Context(), delayq.RunEvent{Topic: "mail"})
	done(delayq.RunEvent{Topic: "mail", FinishedAt: time.Now(), StartedAt: time.Now()})
	var all metricdata.ResourceMetrics
	require.NoError(t, g.Collect(t.Context(), &all))
	found := 0
	for _, one := range all.ScopeMetrics[0].Metrics {
		if h, ok := one.Data.(metricdata.Histogram[float64]); ok && strings.HasPrefix(one.Name, "messaging.") {
			found++
			require.Equal(t, []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}, h.DataPoints[0].Bounds)
		}
	}
	require.Equal(t, 2, found)
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
		handed := fmt.Sprintf("01x%014x%013dx", 1, time.Now().Add(-time.Hour).UnixMilli())
		require.NoError(b, b.RDB.ZAdd(b.Context(), queuetest.Prefix+":{tenant.1}:all:parcels", redis.Z{Member: handed}).Err())
		require.NoError(b, b.RDB.HSet(b.Context(), queuetest.Prefix+":{tenant.2}:all:flows", "f", "12345678o i 3 2 1 0 1000 -").Err())
		all := g.read(b)
		require.Equal(b, map[string]float64{
			"delayq.flows_at_risk{prefix=q topic=a}": 0, "delayq.flows_at_risk{prefix=q topic=b}": 0,
			"delayq.flows_at_risk{prefix=q topic=c}": 0, "delayq.flows_at_risk{prefix=q topic=_other}": 1,
		}, only(all, "delayq.flows_at_risk"))
		require.Equal(b, map[string]float64{
			"delayq.oldest_parcel{prefix=q topic=a}": 0, "delayq.oldest_parcel{prefix=q topic=b}": 0,
			"delayq.oldest_parcel{prefix=q topic=c}": 0, "delayq.oldest_parcel{prefix=q topic=_other}": 3600,
		}, only(all, "delayq.oldest_parcel"))
		require.Equal(b, map[string]float64{
			"delayq.enqueues{result=stored topic=tenant}": 4, "delayq.enqueues{result=stored topic=a}": 2,
			"delayq.enqueues{result=stored topic=b}": 2, "delayq.enqueues{result=stored topic=_other}": 6,
		}, counted(all, "delayq.enqueues"))
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

// A label that cannot be made stands for all other topics.
func TestBrokenLabels(t *testing.T) {
	g := measure()
	m := delayqotel.NewMetrics(delayqotel.MeterProvider(g.provider), delayqotel.TopicLabel(func(topic string) string {
		switch topic {
		case "empty":
			return ""
		case "panics":
			panic("x")
		}
		return topic + "\xff"
	}))
	for _, topic := range []string{"empty", "panics", "bytes"} {
		m.Enqueued(t.Context(), delayq.EnqueueEvent{Topic: topic})
	}
	require.Equal(t, map[string]float64{
		"delayq.enqueues{result=stored topic=_other}": 2, "delayq.enqueues{result=stored topic=bytes\uFFFD}": 1,
	}, counted(g.read(t), "delayq.enqueues"))
}

// handled collects what goes to the global error handler.
type handled struct{ errs []error }

func (h *handled) Handle(err error) { h.errs = append(h.errs, err) }

// An invalid option is reported and has no effect.
func TestInvalidOptions(t *testing.T) {
	var h handled
	otel.SetErrorHandler(&h)
	t.Cleanup(func() { otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {})) })
	for want, opt := range map[string]delayqotel.TracingOption{
		"TopicLabel(nil): must be a function":                               delayqotel.TopicLabel(nil),
		"Relation(nil): must be a function":                                 delayqotel.Relation(nil),
		"LinkRetries(nil): must be an Inspector":                            delayqotel.LinkRetries(nil),
		"ParentWithin(30ns): must be 0, or at least 1ms":                    delayqotel.ParentWithin(30),
		"ParentWithin(-1s): must be 0, or at least 1ms":                     delayqotel.ParentWithin(-time.Second),
		"Baggage: a name is empty":                                          delayqotel.Baggage("a", ""),
		`ServerAddress("", 1): must be a host and a port from 0 to 65535`:   delayqotel.ServerAddress("", 1),
		`ServerAddress("h", -1): must be a host and a port from 0 to 65535`: delayqotel.ServerAddress("h", -1),
	} {
		h.errs = nil
		tracing := delayqotel.NewTracing(opt, delayqotel.TracerProvider(record().provider))
		require.Len(t, h.errs, 1, want)
		require.ErrorIs(t, h.errs[0], delayq.ErrInvalid)
		require.ErrorContains(t, h.errs[0], want)
		_, end := tracing.Run(t.Context(), delayq.RunEvent{Topic: "t", Attempt: 2})
		end(delayq.RunEvent{})
	}
	for want, opt := range map[string]delayqotel.MetricsOption{
		"TopicLabel(nil): must be a function":        delayqotel.TopicLabel(nil),
		"MaxTopics(0): must be from 1 to 10000":      delayqotel.MaxTopics(0),
		"MaxTopics(10001): must be from 1 to 10000":  delayqotel.MaxTopics(10_001),
		"MinInterval(-1s): must be from 0s to 1h":    delayqotel.MinInterval(-time.Second),
		"MinInterval(2h0m0s): must be from 0s to 1h": delayqotel.MinInterval(2 * time.Hour),
	} {
		h.errs = nil
		delayqotel.NewMetrics(opt).Enqueued(t.Context(), delayq.EnqueueEvent{Topic: "t"})
		require.Len(t, h.errs, 1, want)
		require.ErrorContains(t, h.errs[0], want)
		_, err := delayqotel.Observe(delayq.NewInspector(open(t)), opt)
		require.ErrorIs(t, err, delayq.ErrInvalid)
		require.ErrorContains(t, err, want)
	}
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
