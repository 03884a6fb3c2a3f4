package cli

import (
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

func (a *app) jobCommand() *cobra.Command {
	var payload bool
	cmd := &cobra.Command{
		Use:   "job TOPIC ID",
		Short: "Show everything about a job",
		Long: `Show everything about a job: its state, progress, times, limits, headers, payload and
errors, and the output of a done job. An ID that is not printable is given as base64:…, as
lists show it.`,
		Example: `  delayq job order:cancel order-42
  delayq job order:cancel order-42 --payload | jq .`,
		Args:              counted(2, 2, "a topic and an ID"),
		ValidArgsFunction: a.completeArgs(a.topicNames, a.jobIDs(everyState...), nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := args[1]
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			info, err := insp.Job(cmd.Context(), args[0], id)
			if err != nil {
				return err
			}
			if payload {
				return a.writePayload(info.Payload)
			}
			if a.tabular() && a.timeStyle == timeRelative {
				if _, err := a.now(cmd.Context()); err != nil {
					return err
				}
			}
			r := jobOf(info, true)
			return object(a, schemaJob, r, id, func(w io.Writer) error { return a.showJob(w, r) })
		},
	}
	cmd.Flags().BoolVar(&payload, "payload", false, "write the payload alone: byte for byte, and with escapes on a terminal")
	return cmd
}

// writePayload writes a payload. A terminal does not get what it may take for a command.
func (a *app) writePayload(payload []byte) error {
	if !a.out.terminal {
		_, err := a.stdout().Write(payload)
		return err
	}
	parts := strings.Split(strings.TrimSuffix(string(payload), "\n"), "\t")
	for i, part := range parts {
		parts[i] = safe(part, true)
	}
	_, err := fmt.Fprintln(a.stdout(), strings.Join(parts, "\t"))
	return err
}

// showJob writes a job for people.
func (a *app) showJob(w io.Writer, r *jobRecord) error {
	when := func(s stamp) string { return a.when(time.Time(s)) }
	last := func(d seconds) string {
		if d == 0 {
			return ""
		}
		return span(time.Duration(d))
	}
	backoff := ""
	if len(r.Backoff) == 2 {
		backoff = last(r.Backoff[0]) + " to " + last(r.Backoff[1])
	}
	due := when(r.Due)
	if r.DueReason != "" {
		due += " (" + string(r.DueReason) + ")"
	}
	snoozes := ""
	if r.Snoozes > 0 {
		snoozes = strconv.Itoa(r.Snoozes)
	}
	priority := ""
	if r.Priority != nil {
		priority = headText(time.Duration(*r.Priority))
	}
	stage := ""
	if r.Stages > 0 {
		stage = strconv.Itoa(r.Stage) + " of " + strconv.Itoa(r.Stages)
	}
	progress := r.progressText()
	if progress != "" {
		progress += " (" + when(r.Progress.At) + ")"
	}
	given, left := retries(r.Retries), retries(r.RetriesLeft)
	if r.unset && r.Undecodable == "" {
		given, left = given+", unless its handler sets it", ""
	}
	err := a.fields(w,
		"topic", r.Topic, "id", idText(r.exact()), "key", keyText(&r.jobKey), "priority", priority, "state", string(r.State), "enqueued", when(r.Enqueued), "due", due,
		"first call", when(r.BurstBegan), "due at the latest", when(r.BurstEnds), "stage", stage,
		"progress", progress, "steps", r.stepsText(), "flow", r.flowText(), "started", when(r.Started), "lease until", when(r.LeaseEnd), "buried", when(r.Buried), "finished", when(r.Finished),
		"kept until", when(r.KeptUntil), "expires", when(r.ExpireAt),
		"attempt", strconv.Itoa(r.Attempt), "retries", given, "retries left", left, "snoozes", snoozes, "backoff", backoff,
		"timeout", last(r.Timeout), "retention", last(r.Retention), "schedule", r.Schedule, "slot", when(r.Slot),
		"headers", headersText(r), "size", bytesText(r.PayloadSize), "payload", payloadText(r.payload()), "unreadable", r.Undecodable,
	)
	if err == nil {
		err = showOutput(w, "output", &r.runOutput)
	}
	if err == nil && len(r.Plan) > 0 {
		fmt.Fprintln(w)
		err = a.showStages(r)
	}
	if err != nil || len(r.Errors) == 0 {
		return err
	}
	fmt.Fprintln(w)
	return a.showErrors(w, r.Errors)
}

// showStages writes the due times of a job that has several.
func (a *app) showStages(r *jobRecord) error {
	t := &table{a: a, heads: []string{"STAGE", "DUE", "STATE", "FAILED", "ATTEMPT", "KIND", "ERROR"}, right: []bool{true, false, false, false, true, false, false}}
	for i, s := range r.Plan {
		state := "left"
		switch {
		case !s.Failed.IsZero():
			state = "failed"
		case s.Over:
			state = "over"
		case i+1 == r.Stage:
			state = "next"
		}
		failed, attempt := "-", "-"
		if !s.Failed.IsZero() {
			failed, attempt = a.when(time.Time(s.Failed)), strconv.Itoa(s.Attempt)
		}
		if err := t.add([]string{strconv.Itoa(i + 1), a.when(time.Time(s.Due)), state, failed, attempt, orDash(string(s.Kind)), orDash(s.Message)}); err != nil {
			return err
		}
	}
	return t.end()
}

// showErrors writes the failed attempts of a job for people, and with -o wide more about the last.
func (a *app) showErrors(w io.Writer, list []attemptRecord) error {
	t := &table{a: a, heads: []string{"ATTEMPT", "FAILED", "RAN", "SERVER", "KIND", "ERROR"}, right: []bool{true, false, true, false, false, false}}
	for _, e := range list {
		ran := "-"
		if e.Duration != 0 {
			ran = span(time.Duration(e.Duration))
		}
		err := t.add([]string{strconv.Itoa(e.Attempt), a.when(time.Time(e.At)), ran, orDash(e.Server), string(e.Kind), e.Message})
		if err != nil {
			return err
		}
	}
	err := t.end()
	if err != nil || a.format != formatWide {
		return err
	}
	last := list[len(list)-1]
	if last.Type != "" || last.TraceParent != "" || !time.Time(last.NextDue).IsZero() {
		fmt.Fprintln(w)
	}
	err = a.fields(w, "type", last.Type, "next due", a.when(time.Time(last.NextDue)), "trace", last.TraceParent)
	if err == nil && last.Stack != "" {
		_, err = fmt.Fprintf(w, "\n%s\n", safe(last.Stack, true))
	}
	return err
}

// showOutput writes the output of a run, if there is one, below what is said about the run.
func showOutput(w io.Writer, title string, o *runOutput) error {
	text := o.text()
	if text == "" {
		return nil
	}
	_, err := fmt.Fprintf(w, "\n%s:\n%s\n", title, safe(text, true))
	return err
}

// payloadText writes a payload on one line, or says how to get it.
func payloadText(payload []byte) string {
	const most = 2000
	if !utf8.Valid(payload) || len(payload) > most {
		return "(write it to a file with --payload)"
	}
	return string(payload)
}

// retries writes a number of retries.
func retries(n int) string {
	if n < 0 {
		return "unlimited"
	}
	return strconv.Itoa(n)
}

// leftText writes how many retries are left, or a dash if a list has not read that.
func (r *jobRecord) leftText() string {
	if r.Partial {
		return "-"
	}
	return retries(r.RetriesLeft)
}

// headersText writes the headers of a job, sorted.
func headersText(r *jobRecord) string {
	headers, err := r.headers()
	if err != nil {
		return ""
	}
	var list []string
	for key, value := range headers {
		list = append(list, key+"="+value)
	}
	sort.Strings(list)
	return strings.Join(list, " ")
}
