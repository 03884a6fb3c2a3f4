package record

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/vmihailenco/msgpack/v5"
)

// A Flow says of which flow a job is a step. It is never changed.
//
// The home of a flow is the topic of its last step, and the ID of that is the ID of the flow. The
// name is random, so that another flow with this ID is told apart.
type Flow struct {
	Topic string // the home
	ID    string // of the last step
	Name  string // FlowNameLen bytes
	Step  int    // number of the step; LastStep: the last one
}

const (
	// FlowNameLen is the length of the name of a flow, in bytes.
	FlowNameLen = 8

	// LastStep is the number of the last step of a flow.
	LastStep = -1

	maxStep    = 1<<31 - 1
	flowFields = 4
)

// Last reports whether the job is the last step of its flow.
func (f *Flow) Last() bool { return f.Step == LastStep }

// Link returns the note that ties a job to its flow, without the nonce of the record that scripts
// write before it.
func (f *Flow) Link() string { return f.Name + StepHex(f.Step) + Netstring(f.Topic) + f.ID }

// DecodeLink reads what Link returns.
func DecodeLink(text string) (*Flow, error) {
	const front = FlowNameLen + 8
	if len(text) < front {
		return nil, errLink
	}
	step, err := strconv.ParseUint(text[FlowNameLen:front], 16, 32)
	f := &Flow{Name: text[:FlowNameLen], Step: int(int32(step))}
	var ok bool
	if f.Topic, f.ID, ok = CutNetstring(text[front:]); !ok || err != nil {
		return nil, errLink
	}
	return f, f.Check()
}

var errLink = errors.New("the link of a step is damaged")

// StepHex returns the number of a step as the scripts write it: 8 hexadecimal digits.
func StepHex(step int) string { return fmt.Sprintf("%08x", uint32(int32(step))) }

// encode writes the flow: four values. The number has a fixed length (int 32), because a script
// writes the numbers of steps that are added to a group.
func (f *Flow) encode(enc *msgpack.Encoder) error {
	return errors.Join(
		enc.EncodeArrayLen(flowFields), enc.EncodeString(f.Topic), enc.EncodeBytes([]byte(f.ID)),
		enc.EncodeBytes([]byte(f.Name)), enc.EncodeInt32(int32(f.Step)),
	)
}

// decodeFlow reads what encode has written.
func decodeFlow(dec *msgpack.Decoder) (*Flow, error) {
	n, err := dec.DecodeArrayLen()
	if err != nil {
		return nil, err
	}
	if n != flowFields {
		return nil, fmt.Errorf("%d values, must be %d", n, flowFields)
	}
	f := &Flow{}
	if f.Topic, err = dec.DecodeString(); err != nil {
		return nil, err
	}
	for _, field := range []*string{&f.ID, &f.Name} {
		raw, err := dec.DecodeBytes()
		if err != nil {
			return nil, err
		}
		*field = string(raw)
	}
	if f.Step, err = dec.DecodeInt(); err != nil {
		return nil, err
	}
	return f, f.Check()
}

// Check returns an error if there cannot be such a step.
func (f *Flow) Check() error {
	switch {
	case len(f.Topic) < 1 || len(f.Topic) > MaxName:
		return fmt.Errorf("topic of %d bytes, must be 1 to %d", len(f.Topic), MaxName)
	case len(f.ID) < 1 || len(f.ID) > MaxID:
		return fmt.Errorf("ID of %d bytes, must be 1 to %d", len(f.ID), MaxID)
	case len(f.Name) != FlowNameLen:
		return fmt.Errorf("name of %d bytes, must be %d", len(f.Name), FlowNameLen)
	case f.Step < LastStep || f.Step > maxStep:
		return fmt.Errorf("number of the step is %d", f.Step)
	}
	return nil
}
