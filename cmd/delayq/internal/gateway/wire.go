package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/values"
)

// encode writes a value as JSON.
func encode(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// strictly decodes a JSON value that is whole, and has no fields that are not known.
func strictly(data []byte, v any) error {
	if string(bytes.TrimSpace(data)) == "null" {
		return newProblem(badRequest, "null is not what is expected here")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		var value *valueError
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return newProblem(badRequest, "the body ends before the JSON does")
		case errors.As(err, &value):
			return wrong(locate(data, reflect.TypeOf(v).Elem()), "%v", value)
		}
		return err
	}
	if dec.More() {
		return newProblem(badRequest, "there is more behind the JSON value")
	}
	return nil
}

// A valueError says that a value cannot be read, although it is JSON.
type valueError struct{ text string }

func (e *valueError) Error() string { return e.text }

func badValue(format string, args ...any) error { return &valueError{fmt.Sprintf(format, args...)} }

// locate returns which part of a JSON value has a value that cannot be read: the first one, as in
// [2].then[0].process_in.
func locate(data []byte, t reflect.Type) string {
	fails := func(part []byte, t reflect.Type) bool {
		var value *valueError
		return errors.As(json.Unmarshal(part, reflect.New(t).Interface()), &value)
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Slice:
		var items []json.RawMessage
		_ = json.Unmarshal(data, &items) // the caller has read it
		for i, item := range items {
			if fails(item, t.Elem()) {
				return strings.TrimSuffix(fmt.Sprintf("[%d].%s", i, locate(item, t.Elem())), ".")
			}
		}
	case reflect.Struct:
		fields := make(map[string]json.RawMessage)
		_ = json.Unmarshal(data, &fields) // the caller has read it
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if part, given := fields[name]; given && !f.Anonymous && fails(part, f.Type) {
				below := locate(part, f.Type)
				if below == "" || below[0] == '[' {
					return name + below
				}
				return name + "." + below
			}
		}
	}
	return ""
}

// jsonName returns what JSON calls a kind of Go.
func jsonName(k reflect.Kind) string {
	switch k {
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	}
	return "a whole number"
}

// span is a duration in JSON: a number of seconds, or a text such as 1h30m or 3d. It is written as
// a number.
type span time.Duration

// mostSpan is the longest duration in seconds that fits.
const mostSpan = float64(math.MaxInt64 / int64(time.Second))

// UnmarshalJSON reads the duration.
func (s *span) UnmarshalJSON(data []byte) error {
	var seconds float64
	var text string
	switch {
	case json.Unmarshal(data, &text) == nil && text != "":
		d, err := values.ParseSpan(text)
		if err != nil {
			return badValue("%v", err)
		}
		*s = span(d)
		return nil
	case json.Unmarshal(data, &seconds) == nil && math.Abs(seconds) < mostSpan && string(data) != "null":
		*s = span(math.Round(seconds * float64(time.Second)))
		return nil
	}
	return badValue("%s is no duration: allowed are seconds as a number, or a text such as 90s or 3d12h", short(data))
}

// MarshalJSON writes seconds.
func (s span) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// UnmarshalJSON reads a time: RFC 3339, or Unix time in seconds.
func (m *moment) UnmarshalJSON(data []byte) error {
	var seconds float64
	var text string
	if json.Unmarshal(data, &text) == nil && text != "" {
		if t, err := time.Parse(time.RFC3339, text); err == nil {
			*m = moment(t)
			return nil
		}
	} else if json.Unmarshal(data, &seconds) == nil && math.Abs(seconds) < 1e12 && string(data) != "null" {
		*m = moment(time.UnixMilli(int64(math.Round(seconds * 1000))))
		return nil
	}
	return badValue("%s is no time: allowed are 2006-01-02T15:04:05Z, and Unix time in seconds as a number", short(data))
}

// short returns the beginning of what is wrong.
func short(data []byte) string {
	if len(data) > 40 {
		return string(data[:40]) + "…"
	}
	return string(data)
}

// text is a string that means what it says: JSON can have halves of characters, which a decoder
// replaces. Two IDs could become one.
type text string

// UnmarshalJSON reads the string.
func (t *text) UnmarshalJSON(data []byte) error {
	var s string
	if json.Unmarshal(data, &s) != nil || string(data) == "null" {
		return badValue("%s is no string", short(data))
	}
	if strings.ContainsRune(s, utf8.RuneError) && !bytes.ContainsRune(data, utf8.RuneError) && !strings.Contains(strings.ToLower(string(data)), `\ufffd`) {
		return badValue("%s has half of a character", short(data))
	}
	*t = text(s)
	return nil
}

// A jobRequest is a job to enqueue: its payload, and every option that a JobOption of the library
// sets.
type jobRequest struct {
	Topic         text              `json:"topic,omitempty"` // only where the path has none
	ID            text              `json:"id,omitempty"`
	Payload       json.RawMessage   `json:"payload,omitempty"`
	PayloadBase64 []byte            `json:"payload_base64,omitempty"`
	ProcessAt     *moment           `json:"process_at,omitempty"`
	ProcessIn     *span             `json:"process_in,omitempty"`
	ProcessAtEach []moment          `json:"process_at_each,omitempty"`
	ExpireAt      *moment           `json:"expire_at,omitempty"`
	ExpireIn      *span             `json:"expire_in,omitempty"`
	Retry         *int              `json:"retry,omitempty"`
	Backoff       *backoff          `json:"backoff,omitempty"`
	Timeout       *span             `json:"timeout,omitempty"`
	Retention     *span             `json:"retention,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Key           *text             `json:"key,omitempty"`
	Priority      *span             `json:"priority,omitempty"`
	Replace       string            `json:"replace,omitempty"`
	Latest        bool              `json:"latest,omitempty"`
	Debounce      *debounce         `json:"debounce,omitempty"`
	UniqueFor     *span             `json:"unique_for,omitempty"`
	IfMatch       string            `json:"if_match,omitempty"`
}

type backoff struct {
	First span `json:"first"`
	Limit span `json:"limit"`
}

type debounce struct {
	Wait    span `json:"wait"`
	Longest span `json:"longest"`
}

// The values of the field replace.
const (
	replaceAny    = "any"
	replaceDead   = "dead"
	replaceUnless = "unless_running"
)

// A setting is a field and the options that it stands for. with are others that it needs.
type setting struct {
	field string
	opts  []delayq.JobOption
	with  []delayq.JobOption
}

// payload returns the bytes of the payload. JSON is stored as it was sent.
func (j *jobRequest) payload() []byte {
	if j.PayloadBase64 != nil {
		return j.PayloadBase64
	}
	return j.Payload
}

// contradictions returns fields that exclude each other.
func (j *jobRequest) contradictions() (list []fieldError) {
	only := func(names string, given ...bool) {
		n := 0
		for _, is := range given {
			if is {
				n++
			}
		}
		if n > 1 {
			field, _, _ := strings.Cut(names, ",")
			list = append(list, fieldError{field, "only one of " + names + " can be given"})
		}
	}
	only("payload, payload_base64", j.Payload != nil, j.PayloadBase64 != nil)
	only("process_at, process_in, process_at_each", j.ProcessAt != nil, j.ProcessIn != nil, j.ProcessAtEach != nil)
	only("expire_at, expire_in", j.ExpireAt != nil, j.ExpireIn != nil)
	only("replace, latest, debounce", j.Replace != "", j.Latest, j.Debounce != nil)
	switch j.Replace {
	case "", replaceAny, replaceDead, replaceUnless:
	default:
		list = append(list, fieldError{"replace", fmt.Sprintf("%q: allowed are any, dead and unless_running", j.Replace)})
	}
	if j.IfMatch != "" && j.Replace == "" {
		list = append(list, fieldError{"if_match", "needs replace: it says which job may be replaced"})
	}
	return list
}

// settings returns what the fields set.
func (j *jobRequest) settings() (list []setting) {
	add := func(field string, is bool, opt func() delayq.JobOption, with ...delayq.JobOption) {
		if is {
			list = append(list, setting{field, []delayq.JobOption{opt()}, with})
		}
	}
	add("process_at", j.ProcessAt != nil, func() delayq.JobOption { return delayq.ProcessAt(time.Time(*j.ProcessAt)) })
	add("process_in", j.ProcessIn != nil, func() delayq.JobOption { return delayq.ProcessIn(time.Duration(*j.ProcessIn)) })
	add("process_at_each", j.ProcessAtEach != nil, func() delayq.JobOption {
		times := make([]time.Time, len(j.ProcessAtEach))
		for i, t := range j.ProcessAtEach {
			times[i] = time.Time(t)
		}
		return delayq.ProcessAtEach(times...)
	})
	add("expire_at", j.ExpireAt != nil, func() delayq.JobOption { return delayq.ExpireAt(time.Time(*j.ExpireAt)) })
	add("expire_in", j.ExpireIn != nil, func() delayq.JobOption { return delayq.ExpireIn(time.Duration(*j.ExpireIn)) })
	add("retry", j.Retry != nil, func() delayq.JobOption { return delayq.Retry(*j.Retry) })
	add("backoff", j.Backoff != nil, func() delayq.JobOption {
		return delayq.Backoff(time.Duration(j.Backoff.First), time.Duration(j.Backoff.Limit))
	})
	add("timeout", j.Timeout != nil, func() delayq.JobOption { return delayq.Timeout(time.Duration(*j.Timeout)) })
	add("retention", j.Retention != nil, func() delayq.JobOption { return delayq.Retention(time.Duration(*j.Retention)) })
	if len(j.Headers) > 0 {
		headers := setting{field: "headers"}
		for key, value := range j.Headers {
			headers.opts = append(headers.opts, delayq.Header(key, value))
		}
		list = append(list, headers)
	}
	var key []delayq.JobOption
	if j.Key != nil {
		key = append(key, delayq.Key(string(*j.Key)))
		list = append(list, setting{"key", key, nil})
	}
	add("priority", j.Priority != nil, func() delayq.JobOption { return delayq.Priority(time.Duration(*j.Priority)) }, key...)
	return append(list, j.meeting()...)
}

// meeting returns what becomes of a job that has the ID.
func (j *jobRequest) meeting() (list []setting) {
	switch j.Replace {
	case replaceAny:
		list = append(list, setting{"replace", []delayq.JobOption{delayq.Replace()}, nil})
	case replaceDead:
		list = append(list, setting{"replace", []delayq.JobOption{delayq.ReplaceDead()}, nil})
	case replaceUnless:
		list = append(list, setting{"replace", []delayq.JobOption{delayq.Replace(), delayq.UnlessRunning()}, nil})
	}
	if j.Latest {
		list = append(list, setting{"latest", []delayq.JobOption{delayq.Latest()}, nil})
	}
	if d := j.Debounce; d != nil {
		list = append(list, setting{"debounce", []delayq.JobOption{delayq.Debounce(time.Duration(d.Wait), time.Duration(d.Longest))}, nil})
	}
	if j.UniqueFor != nil {
		list = append(list, setting{"unique_for", []delayq.JobOption{delayq.UniqueFor(time.Duration(*j.UniqueFor))}, nil})
	}
	return list
}

// options returns all options of the job.
func (j *jobRequest) options() (opts []delayq.JobOption) {
	for _, s := range j.settings() {
		opts = append(opts, s.opts...)
	}
	return opts
}

// check returns the problem of a job that cannot be enqueued in a topic, whatever Redis says.
func (j *jobRequest) check(topic string) *problem {
	list := j.contradictions()
	if len(list) == 0 {
		if _, err := library.NewJob(delayq.NewJob{Topic: topic, ID: string(j.ID), Options: j.options()}, time.Now()); err != nil {
			return j.blame(topic, err)
		}
		return nil
	}
	p := newProblem(invalid, "%s: %s", list[0].Field, list[0].Detail)
	p.Fields = list
	return p
}

// blame returns the problem of an ErrInvalid with the fields that it is about: those that are
// invalid alone.
func (j *jobRequest) blame(topic string, err error) *problem {
	p := problemOf(err)
	if !errors.Is(err, delayq.ErrInvalid) {
		return p
	}
	try := func(field string, job delayq.NewJob) {
		if _, bad := library.NewJob(job, time.Now()); bad != nil {
			p.Fields = append(p.Fields, fieldError{field, strings.TrimPrefix(bad.Error(), delayq.ErrInvalid.Error()+": ")})
		}
	}
	try("topic", delayq.NewJob{Topic: topic})
	try("id", delayq.NewJob{Topic: "x", ID: string(j.ID)})
	for _, s := range j.settings() {
		try(s.field, delayq.NewJob{Topic: "x", Options: append(s.with[:len(s.with):len(s.with)], s.opts...)})
	}
	return p
}

// data is a payload or an output in an answer: JSON where it is JSON, and base64 elsewhere or if
// that was asked for.
func data(raw []byte, base64 bool) (json.RawMessage, []byte) {
	if len(raw) > 0 && !base64 && utf8.Valid(raw) && json.Valid(raw) {
		return raw, nil
	}
	return nil, raw
}

// exact returns the bytes of an ID that JSON cannot have.
func exact(id string) []byte {
	if utf8.ValidString(id) {
		return nil
	}
	return []byte(id)
}
