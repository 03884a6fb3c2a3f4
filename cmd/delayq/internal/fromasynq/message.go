// Package fromasynq reads the tasks that asynq has stored in Redis, and deletes those that have
// been moved. It knows the keys and the records of asynq 0.19 to 0.26, and needs none of its code.
package fromasynq

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// A State is the state of a task, as asynq names it.
type State string

// The states. A task of a group waits to be made one with others.
const (
	Active      State = "active"
	Pending     State = "pending"
	Scheduled   State = "scheduled"
	Retry       State = "retry"
	Archived    State = "archived"
	Completed   State = "completed"
	Aggregating State = "aggregating"
)

// A Task is a task of asynq.
type Task struct {
	Queue string // in which it was found
	State State  // in which it was found
	ID    string

	Type      string
	Payload   []byte
	Headers   map[string]string
	MaxRetry  int
	Retried   int
	LastError string
	Timeout   time.Duration // 0: none
	Deadline  time.Time     // zero: none
	Retention time.Duration
	UniqueKey string // of the lock that it holds; empty: none
	Group     string

	Score  int64 // of scheduled and retried tasks the Unix time at which they run; of pending ones 0
	Size   int   // of the record, in bytes
	Broken error // why the record cannot be read; nil: it has been read
}

// The fields of the record, which is a message of Protocol Buffers.
const (
	fieldType      = 1
	fieldPayload   = 2
	fieldRetry     = 5
	fieldRetried   = 6
	fieldError     = 7
	fieldTimeout   = 8
	fieldDeadline  = 9
	fieldUniqueKey = 10
	fieldRetention = 12
	fieldGroup     = 14
	fieldHeaders   = 15
)

var errRecord = errors.New("the record is not one of asynq")

// decode reads the record of a task.
func (t *Task) decode(record []byte) error {
	return eachField(record, func(field protowire.Number, text []byte, n int64) error {
		switch field {
		case fieldType:
			t.Type = string(text)
		case fieldPayload:
			t.Payload = text
		case fieldRetry:
			t.MaxRetry = int(n)
		case fieldRetried:
			t.Retried = int(n)
		case fieldError:
			t.LastError = string(text)
		case fieldTimeout:
			t.Timeout = seconds(n)
		case fieldDeadline:
			if n != 0 {
				t.Deadline = time.Unix(n, 0)
			}
		case fieldUniqueKey:
			t.UniqueKey = string(text)
		case fieldRetention:
			t.Retention = seconds(n)
		case fieldGroup:
			t.Group = string(text)
		case fieldHeaders:
			key, value, err := entry(text)
			if err != nil {
				return fmt.Errorf("headers: %w", err)
			}
			if t.Headers == nil {
				t.Headers = map[string]string{}
			}
			t.Headers[key] = string(value)
		}
		return nil
	})
}

// seconds returns a duration, or the longest one if there are more seconds than it has room for.
func seconds(n int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Second)
	return time.Duration(max(0, min(n, most))) * time.Second
}

// entry reads an entry of a map from strings to bytes or numbers. It drops the numbers.
func entry(text []byte) (key string, value []byte, err error) {
	err = eachField(text, func(field protowire.Number, text []byte, _ int64) error {
		switch field {
		case 1:
			key = string(text)
		case 2:
			value = text
		}
		return nil
	})
	return key, value, err
}

// eachField calls see for each field of a message that is text, bytes, a message or a whole number.
func eachField(message []byte, see func(field protowire.Number, text []byte, n int64) error) error {
	for len(message) > 0 {
		field, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return errRecord
		}
		message = message[size:]
		var text []byte
		var n uint64
		switch kind {
		case protowire.BytesType:
			text, size = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(message)
		default:
			size = protowire.ConsumeFieldValue(field, kind, message)
		}
		if size < 0 {
			return errRecord
		}
		message = message[size:]
		if kind != protowire.BytesType && kind != protowire.VarintType {
			continue
		}
		if err := see(field, text, int64(n)); err != nil { // a negative number is written as a large one
			return err
		}
	}
	return nil
}
