package delayqotel

import (
	"fmt"
	"slices"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// LinkSampler returns a sampler that records and samples a span without a parent if it links to a
// sampled one, and asks base about every other span. So the runs of a job whose enqueue was sampled
// are sampled, although they begin traces of their own.
//
//	sdktrace.WithSampler(delayqotel.LinkSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.01))))
//
// A nil base means sdktrace.ParentBased(sdktrace.AlwaysSample()), which is the default of the SDK.
func LinkSampler(base sdktrace.Sampler) sdktrace.Sampler {
	if base == nil {
		base = sdktrace.ParentBased(sdktrace.AlwaysSample())
	}
	return linkSampler{base}
}

type linkSampler struct{ base sdktrace.Sampler }

func (s linkSampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	sampled := func(link trace.Link) bool { return link.SpanContext.IsSampled() }
	if trace.SpanContextFromContext(p.ParentContext).IsValid() || !slices.ContainsFunc(p.Links, sampled) {
		return s.base.ShouldSample(p)
	}
	return sdktrace.SamplingResult{Decision: sdktrace.RecordAndSample}
}

func (s linkSampler) Description() string {
	return fmt.Sprintf("LinkSampler{%s}", s.base.Description())
}
