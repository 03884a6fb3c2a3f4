package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/values"
)

const schemaEnqueued = "delayq.enqueued/1"

// An enqueuedRecord is a job that was stored.
type enqueuedRecord struct {
	jobRef
	Due stamp `json:"due"`
}

// jobFlags are the flags of what a job can be given.
type jobFlags struct {
	retry, backoff     string
	timeout, retention time.Duration
	headers            []string
}

func (j *jobFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&j.retry, "retry", "", "retries after the first failure: a `number` or unlimited")
	f.StringVar(&j.backoff, "backoff", "", "first delay after a failure and the largest, as `first,limit`: 2s,1h")
	f.Var(&duration{&j.timeout}, "job-timeout", "how long a run can take")
	f.Var(&duration{&j.retention}, "retention", "how long the job is kept when it is done")
	f.StringArrayVar(&j.headers, "header", nil, "header as `key=value`; can be repeated")
}

func (j *jobFlags) options(cmd *cobra.Command, a *app) ([]delayq.JobOption, error) {
	var list []delayq.JobOption
	given := cmd.Flags().Changed
	if given("retry") {
		n, err := values.ParseRetry(j.retry)
		if err != nil {
			return nil, usage("--retry %v", err)
		}
		list = append(list, delayq.Retry(n))
	}
	if given("backoff") {
		first, limit, _ := strings.Cut(j.backoff, ",")
		a, err := values.ParseSpan(first)
		b, err2 := values.ParseSpan(limit)
		if err = errors.Join(err, err2); err != nil {
			return nil, usage("--backoff %q: allowed are two durations, for example 2s,1h", j.backoff)
		}
		list = append(list, delayq.Backoff(a, b))
	}
	if given("job-timeout") {
		list = append(list, delayq.Timeout(j.timeout))
	}
	if given("retention") {
		list = append(list, delayq.Retention(j.retention))
	}
	headers, err := headerPairs(j.headers)
	for key, value := range headers {
		list = append(list, delayq.Header(key, value))
	}
	return list, err
}

// headerPairs reads values of --header.
func headerPairs(texts []string) (map[string]string, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	headers := make(map[string]string, len(texts))
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, usage("--header %q: must be key=value", text)
		}
		headers[key] = value
	}
	return headers, nil
}

// eachFlag reads the due times of --at-each; nil: none.
func (a *app) eachFlag(cmd *cobra.Command, texts []string) (delayq.JobOption, error) {
	given := cmd.Flags().Changed
	switch {
	case !given("at-each"):
		return nil, nil
	case given("in"), given("at"):
		return nil, usage("--at-each has all due times: neither --in nor --at can be given with it")
	}
	times := make([]time.Time, len(texts))
	for i, text := range texts {
		var err error
		if times[i], err = a.instant(cmd.Context(), "at-each", text); err != nil {
			return nil, err
		}
	}
	return delayq.ProcessAtEach(times...), nil
}

// dueFlags are the flags of a due time.
type dueFlags struct {
	in time.Duration
	at string
}

func (d *dueFlags) flags(f *pflag.FlagSet) {
	f.Var(&duration{&d.in}, "in", "due after this time")
	f.StringVar(&d.at, "at", "", "due at this `time`: 2006-01-02T15:04:05Z, \"2006-01-02 15:04\", \"tomorrow 9:00\" or +1h30m")
}

// option returns the due time that was given, or nil.
func (d *dueFlags) option(cmd *cobra.Command, a *app) (delayq.DueOption, error) {
	in, at := cmd.Flags().Changed("in"), cmd.Flags().Changed("at")
	switch {
	case in && at:
		return nil, usage("--in and --at: only one of them can be given")
	case in:
		return delayq.ProcessIn(d.in), nil
	case at:
		t, err := a.instant(cmd.Context(), "at", d.at)
		if err != nil {
			return nil, err
		}
		return delayq.ProcessAt(t), nil
	}
	return nil, nil
}

// meeting returns the options that say what becomes of a job with the ID.
func meeting(replace, replaceDead, unless, latest bool, debounce string) (opts []delayq.JobOption, err error) {
	given := 0
	add := func(is bool, opt delayq.JobOption) {
		if is {
			given, opts = given+1, append(opts, opt)
		}
	}
	add(replace, delayq.Replace())
	add(replaceDead, delayq.ReplaceDead())
	add(latest, delayq.Latest())
	if debounce != "" {
		text, most, _ := strings.Cut(debounce, "/")
		var wait, longest time.Duration
		if (&duration{&wait}).Set(text) != nil || (&duration{&longest}).Set(most) != nil {
			return nil, usage("--debounce %q: must be a wait and the longest one, as in 5s/1m", debounce)
		}
		add(true, delayq.Debounce(wait, longest))
	}
	switch {
	case given > 1:
		return nil, usage("--replace, --replace-dead, --latest and --debounce: only one of them can be given")
	case unless && !replace:
		return nil, usage("--unless-running needs --replace")
	case unless:
		opts = append(opts, delayq.UnlessRunning())
	}
	return opts, nil
}

func (a *app) enqueueCommand() *cobra.Command {
	var (
		id, text             string
		job                  jobFlags
		due                  dueFlags
		each                 []string
		expireIn             time.Duration
		expireAt             string
		replace, replaceDead bool
		unless, latest       bool
		debounce             string
		uniqueFor            time.Duration
		toMsgpack            bool
		key                  string
		priority             time.Duration
		wait                 waitFlags
	)
	cmd := &cobra.Command{
		Use:   "enqueue TOPIC [FILE|-]",
		Short: "Store a job",
		Long: `Store a job. The payload is the contents of FILE, or of stdin if FILE is "-", byte for
byte, or the value of --payload. Without both it is empty. The output has the ID.

The job has what the flags give it. The Defaults that a program gives its client or its
typed topic are in its code: they are in the jobs that it stores, and not in this one.
The Defaults of the handler and of its server apply to every run, also of this job:
retries, backoff, timeout and retention, where the flags give none. Without either, a job
that always fails is retried for ever.

With --wait the output is how the job has ended, and so is the exit code: see the command
wait. The job needs no --retention for that.`,
		Example: `  delayq enqueue order:cancel --id order-42 --in 30m --payload '{"order":42}'
  cat mail.json | delayq enqueue mail:welcome --header tenant=7 -
  delayq enqueue report:build --payload '{"month":7}' --wait --raw > report.csv`,
		Args:              counted(1, 2, "a topic and at most one FILE"),
		ValidArgsFunction: a.completeArgs(a.topicNames, nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts, err := job.options(cmd, a)
			if err != nil {
				return err
			}
			when, err := due.option(cmd, a)
			if err != nil {
				return err
			}
			if when != nil {
				opts = append(opts, when)
			}
			stages, err := a.eachFlag(cmd, each)
			if err != nil {
				return err
			}
			if stages != nil {
				opts = append(opts, stages)
			}
			if given := cmd.Flags().Changed; given("key") {
				exact, err := idOf(key)
				if err != nil {
					return err
				}
				opts = append(opts, delayq.Key(exact))
			} else if given("priority") {
				return usage("--priority needs --key: it orders the jobs of a key")
			}
			if cmd.Flags().Changed("priority") {
				opts = append(opts, delayq.Priority(priority))
			}
			switch in, at := cmd.Flags().Changed("expire-in"), cmd.Flags().Changed("expire-at"); {
			case in && at:
				return usage("--expire-in and --expire-at: only one of them can be given")
			case in:
				opts = append(opts, delayq.ExpireIn(expireIn))
			case at:
				t, err := a.instant(cmd.Context(), "expire-at", expireAt)
				if err != nil {
					return err
				}
				opts = append(opts, delayq.ExpireAt(t))
			}
			meets, err := meeting(replace, replaceDead, unless, latest, debounce)
			if err != nil {
				return err
			}
			opts = append(opts, meets...)
			if cmd.Flags().Changed("unique-for") {
				opts = append(opts, delayq.UniqueFor(uniqueFor))
			}
			payload := []byte(text)
			if len(args) == 2 {
				if cmd.Flags().Changed("payload") {
					return usage("--payload and FILE: only one of them can be given")
				}
				if payload, err = a.readFile(args[1]); err != nil {
					return err
				}
			}
			if toMsgpack {
				if payload, err = msgpackOf(payload); err != nil {
					return err
				}
			}
			if id, err = idOf(id); err != nil {
				return err
			}
			if err := wait.check(cmd); err != nil {
				return err
			}
			if wait.wait {
				return wait.call(cmd, a, args[0], id, payload, opts)
			}
			client, err := a.queue()
			if err != nil {
				return err
			}
			ctx := a.act(cmd.Context())
			stored, err := client.Enqueue(ctx, args[0], id, payload, opts...)
			if err != nil {
				return err
			}
			if err := a.note(ctx, client, "enqueue", stored.Topic, stored.ID, "due "+exactTime(stored.Due), 1); err != nil {
				return err
			}
			record := &enqueuedRecord{refOf(stored.Topic, stored.ID), stamp(stored.Due)}
			return object(a, schemaEnqueued, record, stored.ID, func(w io.Writer) error {
				return a.fields(w, "topic", stored.Topic, "id", idText(stored.ID), "due", a.when(stored.Due))
			})
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&id, "id", "", "ID of the job, unique in its topic; without it one is generated")
	f.StringVar(&text, "payload", "", "payload as `text`")
	due.flags(f)
	f.StringSliceVar(&each, "at-each", nil, "due at each of these `times`, one after the other, as one job: +23d,+28d,+29d,+30d")
	f.StringVar(&key, "key", "", "`key` of the job: jobs of a key take turns with those of others, and have limits of their own")
	f.Var(&signed{duration{&priority}}, "priority", "head start over the other jobs of the key, up to 24h; negative: the other way round")
	job.flags(f)
	f.Var(&duration{&expireIn}, "expire-in", "drop the job if it has not started after this time")
	f.StringVar(&expireAt, "expire-at", "", "drop the job if it has not started at this `time`")
	f.BoolVar(&replace, "replace", false, "replace an unfinished job with this ID")
	f.BoolVar(&unless, "unless-running", false, "with --replace: leave a running job alone, and store nothing")
	f.BoolVar(&replaceDead, "replace-dead", false, "replace a dead job with this ID")
	f.StringVar(&debounce, "debounce", "", "put the job off until no call for this ID has come for a time, and at most for another: `wait/longest`, as in 5s/1m")
	f.BoolVar(&latest, "latest", false, "give a job with this ID this payload, and keep its due time")
	f.Var(&duration{&uniqueFor}, "unique-for", "store no other job with this ID for this time, also when the job has completed")
	wait.ofEnqueue(f)
	f.BoolVar(&toMsgpack, "json-to-msgpack", false, "the payload is JSON and is stored as MessagePack")
	return cmd
}

// readFile reads a file, or stdin if the name is "-". It has at most as many bytes as a payload.
func (a *app) readFile(name string) ([]byte, error) {
	if name == "-" {
		return bounded(a.in, "stdin", maxPayload)
	}
	return fileOf(name, maxPayload)
}

// fileOf reads a file of at most that many bytes.
func fileOf(name string, most int64) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, usage("%v", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	return bounded(file, name, most)
}

// bounded reads all that there is, or returns an error if that is more than most bytes.
func bounded(in io.Reader, name string, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(in, most+1))
	switch {
	case err != nil:
		return nil, usage("%s: %v", name, err)
	case int64(len(data)) > most:
		return nil, usage("%s: has more than %s bytes", name, number(most))
	}
	return data, nil
}

// msgpackOf converts JSON to MessagePack. Whole numbers remain whole.
func msgpackOf(text []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	err := dec.Decode(&v)
	if err == nil && dec.More() {
		err = errors.New("there is more than one value")
	}
	if err != nil {
		return nil, usage("--json-to-msgpack: the payload is no JSON: %v", err)
	}
	if v, err = exactNumbers(v, 0); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	enc := msgpack.NewEncoder(&out)
	enc.SetSortMapKeys(true)
	enc.UseCompactInts(true)
	err = enc.Encode(v)
	return out.Bytes(), err
}

// mostDepth is how deep a payload of MessagePack is at most that this program makes.
const mostDepth = 100

// exactNumbers replaces numbers by integers where they are, and by floats elsewhere.
func exactNumbers(v any, depth int) (_ any, err error) {
	if depth > mostDepth {
		return nil, usage("--json-to-msgpack: the payload is nested more than %d deep", mostDepth)
	}
	switch v := v.(type) {
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return n, nil
		}
		if n, err := strconv.ParseUint(v.String(), 10, 64); err == nil {
			return n, nil
		}
		n, err := v.Float64()
		if err != nil {
			return nil, usage("--json-to-msgpack: the number %v does not fit into 64 bits", v)
		}
		return n, nil
	case []any:
		for i := range v {
			if v[i], err = exactNumbers(v[i], depth+1); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for key := range v {
			if v[key], err = exactNumbers(v[key], depth+1); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}
