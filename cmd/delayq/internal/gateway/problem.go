package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
)

// problemPrefix begins the type of each problem (RFC 9457).
const problemPrefix = "urn:delayq:problem:"

// A kind of problem has one status and one title.
type kind struct {
	name   string
	status int
	title  string
}

// The kinds of problems. openapi.json lists all of them.
var (
	badRequest   = kind{"bad-request", http.StatusBadRequest, "The request cannot be read"}
	unauthorized = kind{"unauthorized", http.StatusUnauthorized, "A valid bearer token is needed"}
	forbidden    = kind{"forbidden", http.StatusForbidden, "The token does not allow it"}
	noRoute      = kind{"no-route", http.StatusNotFound, "There is nothing at this path"}
	noJob        = kind{"not-found", http.StatusNotFound, "There is no such job"}
	badMethod    = kind{"method", http.StatusMethodNotAllowed, "The path has no such method"}
	slowBody     = kind{"slow", http.StatusRequestTimeout, "The request did not arrive in time"}
	duplicate    = kind{"duplicate", http.StatusConflict, "Another job has the ID"}
	changed      = kind{"changed", http.StatusConflict, "The job has changed"}
	running      = kind{"running", http.StatusConflict, "The job is running"}
	dead         = kind{"dead", http.StatusConflict, "The job is dead"}
	lostLease    = kind{"lost-lease", http.StatusConflict, "The lease is over"}
	foreignLease = kind{"foreign-lease", http.StatusConflict, "The lease belongs to another gateway"}
	settled      = kind{"settled", http.StatusConflict, "The job was settled in another way"}
	gone         = kind{"gone", http.StatusGone, "The job was cancelled, replaced or dropped"}
	tooLarge     = kind{"too-large", http.StatusRequestEntityTooLarge, "The request is too large"}
	badMedia     = kind{"media-type", http.StatusUnsupportedMediaType, "The body must be JSON"}
	invalid      = kind{"invalid", http.StatusUnprocessableEntity, "A value is out of its bounds"}
	tooMany      = kind{"too-many", http.StatusTooManyRequests, "A bound is reached"}
	tokenShare   = kind{"token-share", http.StatusTooManyRequests, "The token has used up its share"}
	full         = kind{"full", http.StatusTooManyRequests, "Redis has no room for it"}
	internal     = kind{"internal", http.StatusInternalServerError, "The gateway cannot do it"}
	away         = kind{"unavailable", http.StatusServiceUnavailable, "Redis cannot be reached"}
	unknown      = kind{"unknown-outcome", http.StatusServiceUnavailable, "It may or may not have been done"}
	stopping     = kind{"stopping", http.StatusServiceUnavailable, "The gateway is stopping"}
)

var kinds = []kind{
	badRequest, unauthorized, forbidden, noRoute, noJob, badMethod, slowBody, duplicate, changed, running, dead, lostLease, foreignLease,
	settled, gone, tooLarge, badMedia, invalid, tooMany, tokenShare, full, internal, away, unknown, stopping,
}

// A problem is an answer that says why something was not done, as application/problem+json.
type problem struct {
	Type   string       `json:"type"`
	Title  string       `json:"title"`
	Status int          `json:"status"`
	Detail string       `json:"detail,omitempty"`
	Fields []fieldError `json:"errors,omitempty"`
	State  string       `json:"state,omitempty"`  // of the job that is in the way
	Since  moment       `json:"since,omitzero"`   // a dead one was buried
	Until  moment       `json:"until,omitzero"`   // the ID is closed
	Reason string       `json:"reason,omitempty"` // why a lease is over
	Of     []itemAnswer `json:"results,omitempty"`

	retry int // seconds of Retry-After; 0: none
	allow string
}

// A fieldError is what is wrong with a field of the body, or with a part of the URL.
type fieldError struct {
	Field  string `json:"field"`
	Detail string `json:"detail"`
}

func (p *problem) Error() string { return p.Title + ": " + p.Detail }

// newProblem returns a problem. A client should come again after one of 429 and 503.
func newProblem(k kind, format string, args ...any) *problem {
	p := &problem{Type: problemPrefix + k.name, Title: k.title, Status: k.status, Detail: fmt.Sprintf(format, args...)}
	if k.status == http.StatusTooManyRequests || k.status == http.StatusServiceUnavailable {
		p.retry = 1
	}
	return p
}

// wrong is the problem of one field.
func wrong(field, format string, args ...any) *problem {
	detail := fmt.Sprintf(format, args...)
	if field == "" {
		return newProblem(invalid, "%s", detail)
	}
	p := newProblem(invalid, "%s: %s", field, detail)
	p.Fields = []fieldError{{field, detail}}
	return p
}

// write answers a request with the problem.
func (p *problem) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	if p.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retry))
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="delayq"`)
	}
	if p.allow != "" {
		h.Set("Allow", p.allow)
	}
	w.WriteHeader(p.Status)
	_ = encode(w, p) // or the other side has gone
}

// problemOf returns the problem that an error of the library means.
func problemOf(err error) *problem {
	var p *problem
	var twin *delayq.DuplicateError
	var buried *delayq.DeadError
	text := strings.TrimPrefix(err.Error(), delayq.ErrInvalid.Error()+": ")
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, delayq.ErrInvalid):
		return newProblem(invalid, "%s", text)
	case errors.As(err, &twin):
		p = newProblem(duplicate, "%s", text)
		p.State, p.Since, p.Until = string(twin.State), moment(twin.Since), moment(twin.Until)
		return p
	case errors.Is(err, delayq.ErrNotFound):
		return newProblem(noJob, "%s", text)
	case errors.As(err, &buried), errors.Is(err, delayq.ErrDead):
		return newProblem(dead, "%s", text)
	case errors.Is(err, delayq.ErrChanged):
		return newProblem(changed, "%s", text)
	case errors.Is(err, delayq.ErrRunning):
		return newProblem(running, "%s", text)
	case errors.Is(err, delayq.ErrCancelled), errors.Is(err, delayq.ErrReplaced), errors.Is(err, delayq.ErrExpired):
		return newProblem(gone, "%s", text)
	case errors.Is(err, delayq.ErrTooManyTombs):
		return newProblem(tooMany, "%s", text)
	}
	return problemOfRedis(err)
}

// away answers of Redis begin with these words, and pass.
var passing = []string{"LOADING", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "MISCONF", "NOREPLICAS", "BUSY", "MOVED", "ASK"}

// problemOfRedis returns the problem of a call that Redis has refused, or has not answered. The
// text of an error can have an address in it, so it goes to the log only.
func problemOfRedis(err error) *problem {
	var reply redis.Error
	refused := errors.As(err, &reply)
	code := ""
	if refused {
		code, _, _ = strings.Cut(reply.Error(), " ")
	}
	switch {
	case code == "OOM":
		return newProblem(full, "Redis is at its maxmemory; nothing was written")
	case errors.Is(err, delayq.ErrUnknownOutcome):
		return newProblem(unknown, "Redis did not answer. With an ID of your own, repeat the request: a duplicate says that the first one was carried out")
	case errors.Is(err, delayq.ErrNotReplicated):
		return newProblem(unknown, "it is stored, but too few replicas have confirmed it")
	case hasWord(code, passing):
		return newProblem(away, "Redis answers %s", code)
	case refused:
		return newProblem(internal, "Redis refuses the call: %s", code)
	case errors.Is(err, context.Canceled):
		return newProblem(stopping, "the request was given up")
	}
	return newProblem(away, "Redis cannot be reached, or does not answer in time")
}

func hasWord(word string, list []string) bool {
	for _, one := range list {
		if one == word {
			return true
		}
	}
	return false
}

// problemOfBody returns the problem of a body that could not be read or decoded.
func problemOfBody(err error, most int64) *problem {
	var big *http.MaxBytesError
	var syntax *json.SyntaxError
	var kindOf *json.UnmarshalTypeError
	var p *problem
	switch text := strings.TrimPrefix(err.Error(), "json: "); {
	case errors.As(err, &p):
		return p
	case errors.As(err, &big):
		return newProblem(tooLarge, "the body has more than %d bytes", most)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return newProblem(slowBody, "the body did not arrive within %v", bodyTimeout)
	case errors.As(err, &kindOf):
		return wrong(kindOf.Field, "%s is not what is expected there, %s", kindOf.Value, jsonName(kindOf.Type.Kind()))
	case errors.As(err, &syntax):
		return newProblem(badRequest, "the body is no JSON: %v, at byte %d", syntax, syntax.Offset)
	case strings.HasPrefix(text, "unknown field "):
		name, _ := strconv.Unquote(strings.TrimPrefix(text, "unknown field "))
		return wrong(name, "there is no such field")
	default:
		return newProblem(badRequest, "the body cannot be read: %s", text)
	}
}

// moment is a time in JSON: RFC 3339 in UTC, with milliseconds.
type moment time.Time

// IsZero makes omitzero leave out a time that there is not.
func (m moment) IsZero() bool { return time.Time(m).IsZero() }

// MarshalJSON writes the time.
func (m moment) MarshalJSON() ([]byte, error) {
	return []byte(time.Time(m).UTC().Format(`"2006-01-02T15:04:05.000Z"`)), nil
}
