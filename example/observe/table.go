package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// table describes spans, a line for each, in the order in which they began. A trace is called by a
// letter, and a span by its line.
func table(spans tracetest.SpanStubs) string {
	slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	var traces []trace.TraceID
	lines := map[trace.SpanID]int{}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "span\ttrace\tkind\tname\tjob\tlinks to\tattempt\toutcome\tstatus")
	for i, s := range spans {
		id := s.SpanContext.TraceID()
		if !slices.Contains(traces, id) {
			traces = append(traces, id)
		}
		lines[s.SpanContext.SpanID()] = i + 1
		attrs := map[attribute.Key]string{}
		for _, a := range s.Attributes {
			attrs[a.Key] = a.Value.String()
		}
		var links []string
		for _, l := range s.Links {
			links = append(links, fmt.Sprint(lines[l.SpanContext.SpanID()]))
		}
		fmt.Fprintf(w, "%d\t%c", i+1, 'A'+slices.Index(traces, id))
		for _, cell := range []string{
			s.SpanKind.String(), s.Name, attrs["messaging.message.id"], strings.Join(links, ","),
			attrs["messaging.delayq.message.attempt"], attrs["messaging.delayq.message.outcome"], s.Status.Code.String(),
		} {
			fmt.Fprintf(w, "\t%s", cmp.Or(cell, "-"))
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // a Builder has no errors
	return text.String()
}
