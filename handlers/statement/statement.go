package statement

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/handlers/internal/jsonerr"
	"github.com/delayq/delayq/outbox"
)

// maxTries is how often a transaction is begun in one run.
const maxTries = 5

// maxCounts is how many bytes of row counts are attached to a run, and a line more.
const maxCounts = 1 << 10

// form is the form of a payload, for errors.
const form = `{"statement": "name", "arguments": {"name": value, …}}`

// A Handler executes statements. It is a [delayq.Handler] and safe for concurrent use.
type Handler struct {
	db      *sql.DB
	dialect outbox.Dialect
	inbox   *outbox.Inbox
	table   []outbox.Option
	tx      *sql.TxOptions
	entries map[string]entry
}

// An entry is a list of statements that are executed together.
type entry struct {
	queries []query
	names   []string // of the arguments, sorted
}

// An Option configures a [Handler].
type Option func(*Handler) error

// Table is the name of the outbox whose inbox is used: see [outbox.Table]. Default: that of the
// outbox.
func Table(name string) Option {
	return func(h *Handler) error {
		h.table = append(h.table, outbox.Table(name))
		return nil
	}
}

// Isolation is the isolation level of the transactions. A stricter level fails more often with
// serialisation failures, which are repeated. The driver refuses a level that it does not know.
// Default: that of the database.
func Isolation(level sql.IsolationLevel) Option {
	return func(h *Handler) error {
		h.tx = &sql.TxOptions{Isolation: level}
		return nil
	}
}

// New returns a handler with named lists of statements. It does not ask the database: a statement
// with a mistake buries its jobs. It returns [delayq.ErrInvalid], with every complaint, for an
// option, for no statement, and for a statement that cannot be split into names and text.
func New(db *sql.DB, d outbox.Dialect, statements map[string][]string, opts ...Option) (*Handler, error) {
	h := &Handler{db: db, dialect: d, entries: make(map[string]entry)}
	var errs []error
	if db == nil {
		errs = append(errs, errors.New("nil database"))
	}
	for _, opt := range opts {
		if opt == nil {
			errs = append(errs, errors.New("nil option"))
			continue
		}
		errs = append(errs, opt(h))
	}
	var err error
	if h.inbox, err = outbox.NewInbox(d, h.table...); err != nil {
		errs = append(errs, err)
	}
	if len(statements) == 0 {
		errs = append(errs, errors.New("no statements"))
	}
	for _, name := range slices.Sorted(maps.Keys(statements)) {
		var e entry
		if len(statements[name]) == 0 {
			errs = append(errs, fmt.Errorf("%q has no statement", name))
		}
		for i, text := range statements[name] {
			q, err := parse(d, text)
			if err != nil {
				errs = append(errs, fmt.Errorf("statement %d of %q: %w", i+1, name, err))
				continue
			}
			e.queries, e.names = append(e.queries, q), append(e.names, q.names...)
		}
		slices.Sort(e.names)
		e.names = slices.Compact(e.names)
		h.entries[name] = e
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("statement: %w: %w", delayq.ErrInvalid, err)
	}
	return h, nil
}

// Handle executes the statements that the payload names: see the package documentation.
func (h *Handler) Handle(ctx context.Context, job *delayq.Job) error {
	name, arguments, err := h.read(job.Payload)
	if err != nil {
		return delayq.Permanent(fmt.Errorf("statement: payload of %d bytes: %w", len(job.Payload), err))
	}
	for try := 1; ; try++ {
		err := h.once(ctx, job, name, arguments)
		if err == nil {
			return nil
		}
		err = fmt.Errorf("statement: %q: %w", name, err)
		switch what := classify(h.dialect, err); {
		case errors.Is(err, outbox.ErrSchema):
			return err
		case what == never:
			return delayq.Permanent(err)
		case what == later || try == maxTries || ctx.Err() != nil:
			return err
		}
	}
}

// once executes the statements in a transaction, unless an earlier one has done that.
func (h *Handler) once(ctx context.Context, job *delayq.Job, name string, arguments map[string]any) error {
	tx, err := h.db.BeginTx(ctx, h.tx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	switch first, err := h.inbox.Once(ctx, tx, job); {
	case err != nil:
		return err
	case !first:
		_ = job.SetOutput([]byte("an earlier run has done it\n"))
		return nil
	}
	queries := h.entries[name].queries
	counts := make([]byte, 0, maxCounts)
	for i, q := range queries {
		values := make([]any, len(q.names))
		for n, name := range q.names {
			values[n] = arguments[name]
		}
		result, err := tx.ExecContext(ctx, q.text, values...)
		if err != nil {
			return fmt.Errorf("%d of %d: %w", i+1, len(queries), err)
		}
		if n, err := result.RowsAffected(); err == nil && len(counts) < maxCounts {
			counts = fmt.Appendf(counts, "statement %d: rows affected: %d\n", i+1, n)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	_ = job.SetOutput(counts) // it is short; a job without a run keeps none
	return nil
}

// read returns what a payload asks for. Its errors have names and no values.
func (h *Handler) read(payload []byte) (name string, arguments map[string]any, err error) {
	var request struct {
		Statement string         `json:"statement"`
		Arguments map[string]any `json:"arguments"`
	}
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&request); err != nil {
		return "", nil, fmt.Errorf("%w; expected %s", jsonerr.Located(err, decoder), form)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return "", nil, fmt.Errorf("byte %d: more than one value; expected %s", decoder.InputOffset()+1, form)
	}
	e, found := h.entries[request.Statement]
	if !found {
		return "", nil, fmt.Errorf("there is no statement %q; expected one of %q", request.Statement, slices.Sorted(maps.Keys(h.entries)))
	}
	names := slices.Sorted(maps.Keys(request.Arguments))
	if !slices.Equal(names, e.names) {
		return "", nil, fmt.Errorf("%q: arguments %q; expected exactly %q", request.Statement, names, e.names)
	}
	for name, value := range request.Arguments {
		if request.Arguments[name], err = h.bindable(value); err != nil {
			return "", nil, fmt.Errorf("%q: argument %q: %w", request.Statement, name, err)
		}
	}
	return request.Statement, request.Arguments, nil
}

// bindable returns a value of JSON as a parameter.
func (h *Handler) bindable(value any) (any, error) {
	switch v := value.(type) {
	case nil:
		return nil, nil
	case string:
		return v, nil
	case bool:
		if h.dialect == outbox.Postgres {
			return strconv.FormatBool(v), nil
		}
		return v, nil
	case json.Number:
		if n, err := v.Int64(); err == nil && h.dialect != outbox.Postgres {
			return n, nil
		}
		if !strings.ContainsAny(v.String(), ".eE") {
			if _, err := v.Int64(); err != nil {
				return nil, errors.New("a whole number of more than 64 bits; expected one of at most 64 bits, or a string")
			}
		}
		if h.dialect == outbox.Postgres {
			return v.String(), nil
		}
		f, err := v.Float64()
		if err != nil {
			return nil, errors.New("a number that is too large; expected a 64-bit floating-point number, or a string")
		}
		return f, nil
	case []any:
		return nil, errors.New("an array; expected a string, a number, a boolean or null")
	default:
		return nil, errors.New("an object; expected a string, a number, a boolean or null")
	}
}
