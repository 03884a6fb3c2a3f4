package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/handlers/internal/jsonerr"
)

// namedForm is the form of a payload of a [Named], for errors.
const namedForm = `{"command": "name", "input": …}`

// A Named runs one of several commands, which the payload names. It is a [delayq.Handler] and safe
// for concurrent use.
type Named struct {
	commands map[string]*Handler
}

// NewNamed returns a handler that runs one of several commands:
//
//	tools, err := command.NewNamed(map[string]*command.Handler{"report": report})
//	server.Handle("command", tools)
//
//	_, err = client.Enqueue(ctx, "command", "report-3",
//		[]byte(`{"command": "report", "input": {"month": 3}}`))
//
// The command gets the input on standard input: a string as its text, and any other value as it
// stands in the payload. Without an input it gets nothing. A payload that does not fit buries the
// job. NewNamed returns [delayq.ErrInvalid] for no commands and for a nil one.
func NewNamed(commands map[string]*Handler) (*Named, error) {
	var errs []error
	if len(commands) == 0 {
		errs = append(errs, errors.New("no commands"))
	}
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		if commands[name] == nil {
			errs = append(errs, fmt.Errorf("%q is nil", name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("command: %w: %w", delayq.ErrInvalid, err)
	}
	return &Named{maps.Clone(commands)}, nil
}

// Handle runs the command that the payload names.
func (n *Named) Handle(ctx context.Context, job *delayq.Job) error {
	h, input, err := n.read(job.Payload)
	if err != nil {
		return delayq.Permanent(fmt.Errorf("command: payload of %d bytes: %w", len(job.Payload), err))
	}
	own := *job
	own.Payload = input
	return h.Handle(ctx, &own)
}

// read returns what a payload asks for. Its errors have no values but the name.
func (n *Named) read(payload []byte) (*Handler, []byte, error) {
	var request struct {
		Command string          `json:"command"`
		Input   json.RawMessage `json:"input"`
	}
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&request); err != nil {
		return nil, nil, fmt.Errorf("%w; expected %s", jsonerr.Located(err, decoder), namedForm)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, nil, fmt.Errorf("byte %d: more than one value; expected %s", decoder.InputOffset()+1, namedForm)
	}
	h := n.commands[request.Command]
	if h == nil {
		return nil, nil, fmt.Errorf("there is no command %q; expected one of %q", request.Command, slices.Sorted(maps.Keys(n.commands)))
	}
	if len(request.Input) == 0 || request.Input[0] != '"' {
		return h, request.Input, nil
	}
	var text string
	if err := json.Unmarshal(request.Input, &text); err != nil {
		return nil, nil, fmt.Errorf("input: not JSON; expected %s", namedForm) // Decode has checked it
	}
	return h, []byte(text), nil
}
