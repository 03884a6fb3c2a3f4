package record

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
)

// Bounds of a plan: its stages, and the bytes that it keeps of the error of a failed one.
const (
	MaxStages       = 100
	maxStageMessage = 100
)

// A Plan is several due times of one job: its stages. It is never changed: the next stage has a
// plan of its own.
type Plan struct {
	Times  []int64       // due times in Unix ms, ascending
	Stage  int           // index of the present one
	Failed []FailedStage // stages that have failed for good and were not run again, ascending
	Redo   bool          // all stages have had their turn, and those in Failed run again
}

// A FailedStage is a stage whose last failure left no retry.
type FailedStage struct {
	Stage   int // index
	At      int64
	Attempt int // the last one
	Kind    string
	Message string
}

// Rest returns the due times after the present stage.
func (p *Plan) Rest() []int64 {
	if p.over() {
		return nil
	}
	return p.Times[p.Stage+1:]
}

// over reports whether all stages have had their turn.
func (p *Plan) over() bool {
	return p.Redo || p.Stage == len(p.Times)-1 || len(p.Failed) > 0 && p.Failed[0].Stage == p.Stage
}

// Closed reports whether all stages have had their turn, some have failed, and nobody has asked for
// these to run again: the job is to be buried instead of run.
func (p *Plan) Closed() bool {
	return !p.Redo && len(p.Failed) > 0 && p.Failed[0].Stage == p.Stage
}

// FailedOf returns the failure of the stage with that index, nil if it has not failed.
func (p *Plan) FailedOf(stage int) *FailedStage {
	i := slices.IndexFunc(p.Failed, func(f FailedStage) bool { return f.Stage == stage })
	if i < 0 {
		return nil
	}
	return &p.Failed[i]
}

// Next returns what follows when the present stage has succeeded, and when it is due: 0 is now. It
// returns nil if the job is done. After the last stage the failed ones follow: see Closed.
func (p *Plan) Next() (next *Plan, due int64) {
	if rest := p.Rest(); len(rest) > 0 {
		return &Plan{Times: p.Times, Stage: p.Stage + 1, Failed: p.Failed}, rest[0]
	}
	next = &Plan{Times: p.Times, Failed: p.Failed, Redo: p.Redo}
	if len(p.Failed) > 0 && p.Failed[0].Stage == p.Stage {
		next.Failed, next.Redo = p.Failed[1:], true
	}
	if len(next.Failed) == 0 {
		return nil, 0
	}
	next.Stage = next.Failed[0].Stage
	return next, 0
}

// Fail returns what follows when the present stage has failed for good, and when it is due. It
// returns nil if no stage follows: then the job is dead.
func (p *Plan) Fail(f FailedStage) (next *Plan, due int64) {
	if len(p.Rest()) == 0 {
		return nil, 0
	}
	next, due = p.Next()
	f.Stage, f.Message = p.Stage, clip(f.Message, maxStageMessage)
	next.Failed = append(slices.Clip(p.Failed), f)
	return next, due
}

// Again returns the plan of a job that runs the present stage again, as another incarnation.
func (p *Plan) Again() *Plan {
	next := *p
	next.Redo = p.Redo || p.Closed()
	return &next
}

// Check returns an error if the plan cannot be one.
func (p *Plan) Check() error {
	if n := len(p.Times); n < 1 || n > MaxStages {
		return fmt.Errorf("%d stages, must be 1 to %d", n, MaxStages)
	}
	if p.Stage < 0 || p.Stage >= len(p.Times) {
		return fmt.Errorf("stage %d of %d", p.Stage+1, len(p.Times))
	}
	for i, at := range p.Times {
		switch {
		case at < 1 || at > MaxTime:
			return fmt.Errorf("stage %d is due at %d ms", i+1, at)
		case i > 0 && at <= p.Times[i-1]:
			return fmt.Errorf("stage %d is not due after stage %d", i+1, i)
		}
	}
	for i, f := range p.Failed {
		if f.Stage < 0 || f.Stage >= len(p.Times) || i > 0 && f.Stage <= p.Failed[i-1].Stage {
			return fmt.Errorf("failed stage %d of %d", f.Stage+1, len(p.Times))
		}
	}
	return nil
}

// encode writes the plan: the index of the stage, whether failed ones run again (0 or 1), the
// times, and five values of each failed stage.
func (p *Plan) encode(enc *msgpack.Encoder) error {
	redo := int64(0)
	if p.Redo {
		redo = 1
	}
	err := errors.Join(enc.EncodeInt(int64(p.Stage)), enc.EncodeInt(redo), enc.EncodeArrayLen(len(p.Times)))
	for _, at := range p.Times {
		err = errors.Join(err, enc.EncodeInt(at))
	}
	err = errors.Join(err, enc.EncodeArrayLen(5*len(p.Failed)))
	for _, f := range p.Failed {
		err = errors.Join(err, enc.EncodeInt(int64(f.Stage)), enc.EncodeInt(f.At), enc.EncodeInt(int64(f.Attempt)), enc.EncodeString(f.Kind), enc.EncodeString(f.Message))
	}
	return err
}

// planFields is how many values encode writes.
const planFields = 4

// decodePlan reads what encode has written.
func decodePlan(dec *msgpack.Decoder) (*Plan, error) {
	p := &Plan{}
	var redo int
	var n int
	var err error
	if p.Stage, err = dec.DecodeInt(); err != nil {
		return nil, err
	}
	if redo, err = dec.DecodeInt(); err != nil {
		return nil, err
	}
	p.Redo = redo != 0
	if n, err = dec.DecodeArrayLen(); err != nil {
		return nil, err
	}
	if n < 1 || n > MaxStages {
		return nil, fmt.Errorf("%d stages", n)
	}
	p.Times = make([]int64, n)
	for i := range p.Times {
		if p.Times[i], err = dec.DecodeInt64(); err != nil {
			return nil, err
		}
	}
	if n, err = dec.DecodeArrayLen(); err != nil {
		return nil, err
	}
	if n < 0 || n > 5*len(p.Times) || n%5 != 0 {
		return nil, fmt.Errorf("%d values of failed stages", n)
	}
	for range n / 5 {
		f, err := decodeFailedStage(dec)
		if err != nil {
			return nil, err
		}
		p.Failed = append(p.Failed, f)
	}
	return p, p.Check()
}

func decodeFailedStage(dec *msgpack.Decoder) (f FailedStage, err error) {
	if f.Stage, err = dec.DecodeInt(); err != nil {
		return f, err
	}
	if f.At, err = dec.DecodeInt64(); err != nil {
		return f, err
	}
	if f.Attempt, err = dec.DecodeInt(); err != nil {
		return f, err
	}
	if f.Kind, err = dec.DecodeString(); err != nil {
		return f, err
	}
	f.Message, err = dec.DecodeString()
	return f, err
}
