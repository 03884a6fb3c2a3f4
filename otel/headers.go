package delayqotel

import (
	"context"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Headers of a job, which are those of the W3C.
const (
	headerTrace   = "traceparent"
	headerState   = "tracestate"
	headerBaggage = "baggage"
)

// maxState is the most bytes of a tracestate that is stored: what the W3C asks everyone to pass on.
const maxState = 512

// w3c reads and writes the headers of a trace.
var w3c propagation.TraceContext

// A carrier holds the headers of one trace.
type carrier struct{ parent, state string }

func (c *carrier) Get(key string) string {
	switch key {
	case headerTrace:
		return c.parent
	case headerState:
		return c.state
	}
	return ""
}

func (c *carrier) Set(key, value string) {
	switch key {
	case headerTrace:
		c.parent = value
	case headerState:
		c.state = value
	}
}

func (c *carrier) Keys() []string { return []string{headerTrace, headerState} }

// headers returns the headers of a job whose creation context is that of ctx.
func (t *Tracing) headers(ctx context.Context) map[string]string {
	var c carrier
	w3c.Inject(ctx, &c)
	headers := make(map[string]string, 3)
	if c.parent != "" {
		headers[headerTrace] = c.parent
	}
	if c.state != "" && len(c.state) <= maxState {
		headers[headerState] = c.state
	}
	if len(t.o.baggage) > 0 {
		if some := t.named(baggage.FromContext(ctx)); some.Len() > 0 {
			headers[headerBaggage] = some.String()
		}
	}
	return headers
}

// named returns the members of a baggage that travel with a job.
func (t *Tracing) named(all baggage.Baggage) (some baggage.Baggage) {
	for _, member := range all.Members() {
		if t.o.baggage[member.Key()] {
			if more, err := some.SetMember(member); err == nil {
				some = more
			}
		}
	}
	return some
}

// creation returns the creation context of a job. It is invalid if the headers have none.
func creation(headers map[string]string) trace.SpanContext {
	if headers[headerTrace] == "" {
		return trace.SpanContext{}
	}
	ctx := w3c.Extract(context.Background(), &carrier{headers[headerTrace], headers[headerState]})
	return trace.SpanContextFromContext(ctx)
}

// withBaggage returns ctx with the baggage of a job.
func (t *Tracing) withBaggage(ctx context.Context, headers map[string]string) context.Context {
	text := headers[headerBaggage]
	if text == "" || len(t.o.baggage) == 0 {
		return ctx
	}
	all, err := baggage.Parse(text)
	if err != nil {
		return ctx
	}
	if some := t.named(all); some.Len() > 0 {
		return baggage.ContextWithBaggage(ctx, some)
	}
	return ctx
}
