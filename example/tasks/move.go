package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/delayq/delayq"
)

// A task is a row of the table.
type task struct {
	id                  int64
	name, kind, content string
	every               sql.NullInt64 // seconds
	next                int64         // Unix seconds
	paused              bool
}

// move makes a schedule or a job of each row that is left, and writes to w what has become of it.
// The old poller must not run any more, and servers must not run yet. A row that the configuration
// does not know stays where it is.
func (c *config) move(ctx context.Context, db *sql.DB, client *delayq.Client, w io.Writer) error {
	rows, err := db.QueryContext(ctx, `SELECT id, name, type, content, interval_s, next_run, paused FROM tasks
		WHERE status NOT IN ('moved', 'refused') AND (interval_s IS NOT NULL OR status <> 'done') ORDER BY id`)
	if err != nil {
		return err
	}
	defer rows.Close()
	var list []task
	for rows.Next() {
		var t task
		if err := rows.Scan(&t.id, &t.name, &t.kind, &t.content, &t.every, &t.next, &t.paused); err != nil {
			return err
		}
		list = append(list, t)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	count := map[string]int{}
	for _, t := range list {
		status := "moved"
		j, err := c.job(t)
		if err == nil {
			err = t.hand(ctx, client, j)
		}
		switch {
		case errors.Is(err, errRefused), errors.Is(err, delayq.ErrInvalid):
			status = "refused"
			fmt.Fprintf(w, "task %d: %v\n", t.id, err)
		case err != nil: // Redis: what was moved is marked, and the rest is for the next try
			return fmt.Errorf("task %d: %w", t.id, err)
		}
		if _, err := db.ExecContext(ctx, "UPDATE tasks SET status = $1 WHERE id = $2", status, t.id); err != nil {
			return err
		}
		count[status]++
	}
	fmt.Fprintln(w, count["moved"], "moved,", count["refused"], "refused")
	return nil
}

var errRefused = errors.New("refused")

// A request is what a task becomes: what "delayq task add" writes too.
type request struct {
	topic   string
	payload []byte
	options []delayq.JobOption
}

// job returns the request of a row. What the row wants to execute must be what the configuration
// has under that name: the payload has the name alone.
func (c *config) job(t task) (*request, error) {
	r := &request{topic: t.kind}
	what, known := t.name, ""
	var about any
	switch t.kind {
	case "sql":
		known, about = c.statements[t.name], map[string]string{"statement": t.name}
	case "shell", "python":
		r.topic, about = "command", map[string]string{"command": t.name}
		if argv := c.commands[t.name]; len(argv) > 0 {
			known = argv[len(argv)-1]
		}
	case "http":
		r.topic, known, about = "webhook", c.receivers[t.name], map[string]string{"receiver": t.name}
		r.options = append(r.options, delayq.Key(t.name)) // a dead receiver delays no other
	case "email": // the handler validates the address
		what, known = "report", t.content
		r.topic, about = "mail", map[string]any{"template": what, "to": []string{t.content}}
	default:
		return nil, fmt.Errorf("%w: %q: the type %q is unknown", errRefused, t.name, t.kind)
	}
	if known != t.content {
		return nil, fmt.Errorf("%w: %q: its content is not that of the configuration", errRefused, t.name)
	}
	// Lists show the first header. The second one says that the task is from no file.
	r.options = append(r.options, delayq.Header("task", r.topic+" "+what), delayq.Header("task-from", "command"))
	var err error
	r.payload, err = json.Marshal(about)
	return r, err
}

// hand gives a task to delayq. The call can be repeated.
func (t task) hand(ctx context.Context, client *delayq.Client, r *request) error {
	next := time.Unix(t.next, 0)
	if !t.every.Valid {
		_, err := client.Enqueue(ctx, r.topic, t.name, r.payload, append(r.options, delayq.ProcessAt(next), delayq.Retention(7*24*time.Hour))...)
		if errors.Is(err, delayq.ErrDuplicate) {
			return nil // an earlier move was stopped before it could mark the row
		}
		return err
	}
	options := make([]delayq.ScheduleOption, len(r.options))
	for i, opt := range r.options {
		options[i] = opt
	}
	err := client.Schedule(ctx, r.topic, t.name, delayq.Every(time.Duration(t.every.Int64)*time.Second), r.payload, options...)
	if err == nil && t.paused {
		err = client.PauseSchedule(ctx, r.topic, t.name)
	}
	return err
}
