package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

const (
	exportPage = 100 // jobs whose IDs are in memory
	importPage = 500 // jobs that are stored together
	importLine = 96 << 20
)

// An importRecord is the outcome of import.
type importRecord struct {
	Stored     int `json:"stored"`
	Duplicates int `json:"duplicates"`
	Skipped    int `json:"skipped"` // dead, done and unreadable ones
	Failed     int `json:"failed"`
}

func (a *app) importCommand() *cobra.Command {
	var topic string
	var dead, dryRun bool
	cmd := &cobra.Command{
		Use:   "import [FILE|-]",
		Short: "Store jobs that export has written",
		Long: `Store jobs that export has written, from FILE or stdin. They keep their ID, payload,
headers, key, priority, due time and limits. Attempts and errors are not kept. A job
whose ID is taken is left alone and counted, so import can be repeated. Done jobs are
skipped, and dead ones too unless --revive is given.`,
		Example:           "  delayq import dead.jsonl --topic mail:retry --revive",
		Args:              counted(0, 1, "at most one file"),
		ValidArgsFunction: a.completeArgs(nil, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := io.Reader(a.in)
			if len(args) == 1 && args[0] != "-" {
				file, err := os.Open(args[0])
				if err != nil {
					return usage("%v", err)
				}
				defer file.Close()
				in = file
			}
			client, err := a.queue()
			if err != nil {
				return err
			}
			i := &importing{a: a, client: client, topic: topic, dead: dead, dryRun: dryRun}
			return i.run(a.act(cmd.Context()), in)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&topic, "topic", "", "store the jobs in this `topic` instead of their own")
	f.BoolVar(&dead, "revive", false, "store dead jobs too; they run at once")
	f.BoolVar(&dryRun, "dry-run", false, "read the file, and store nothing")
	return cmd
}

// An importing is one execution of import.
type importing struct {
	a            *app
	client       *delayq.Client
	topic        string
	dead, dryRun bool
	line         int
	batch        []delayq.NewJob
	lines        []int // of the batch
	sum          importRecord
}

func (i *importing) run(ctx context.Context, in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 64<<10), importLine)
	err := func() error {
		for lines.Scan() {
			i.line++
			if len(bytes.TrimSpace(lines.Bytes())) == 0 {
				continue
			}
			if err := i.read(lines.Bytes()); err != nil {
				return usage("line %d: %v", i.line, err)
			}
			if len(i.batch) == importPage {
				if err := i.store(ctx); err != nil {
					return err
				}
			}
		}
		if err := lines.Err(); err != nil {
			return usage("line %d: %v", i.line+1, err)
		}
		return nil
	}()
	if stored := i.store(ctx); err == nil {
		err = stored
	}
	if i.sum.Stored > 0 && !i.dryRun {
		noted := i.a.note(ctx, i.client, "import", i.topic, "", count(i.sum.Duplicates, "duplicate"), int64(i.sum.Stored))
		if err == nil {
			err = noted
		}
	}
	if written := object(i.a, schemaImport, &i.sum, "", func(w io.Writer) error {
		text := "stored"
		if i.dryRun {
			text = "would be stored"
		}
		_, err := fmt.Fprintf(w, "%s %s, %s, %s skipped, %s failed\n",
			count(i.sum.Stored, "job"), text, count(i.sum.Duplicates, "duplicate"), number(i.sum.Skipped), number(i.sum.Failed))
		return err
	}); err == nil {
		err = written
	}
	switch {
	case err != nil:
		return err
	case i.sum.Failed > 0:
		return &exitCode{code: exitPartly}
	}
	return nil
}

// read adds the job of a line to the batch.
func (i *importing) read(line []byte) error {
	e := new(exportRecord)
	if err := json.Unmarshal(line, e); err != nil {
		return err
	}
	switch {
	case e.Schema != schemaExport:
		return fmt.Errorf("schema %q: must be %q", e.Schema, schemaExport)
	case e.exact() == "":
		return errors.New("the job has no ID")
	case e.State == delayq.StateDone, e.State == delayq.StateDead && !i.dead, e.Undecodable != "":
		i.sum.Skipped++
		return nil
	case !slices.Contains(states, string(e.State)):
		return fmt.Errorf("unknown state %q", e.State)
	}
	job, err := e.job()
	if err != nil {
		return err
	}
	if i.topic != "" {
		job.Topic = i.topic
	}
	i.batch, i.lines = append(i.batch, job), append(i.lines, i.line)
	return nil
}

// store enqueues the batch.
func (i *importing) store(ctx context.Context) error {
	batch, lines := i.batch, i.lines
	i.batch, i.lines = nil, nil
	if i.dryRun {
		i.sum.Stored += len(batch)
		return nil
	}
	results, _ := i.client.EnqueueBatch(ctx, batch) // each result has its error
	var stopped error
	for n, r := range results {
		switch {
		case r.Err == nil:
			i.sum.Stored++
		case errors.Is(r.Err, delayq.ErrDuplicate):
			i.sum.Duplicates++
		default:
			if i.sum.Failed++; i.sum.Failed <= 10 {
				i.a.say("line %d: %s", lines[n], errorText(r.Err))
			}
			if unreachable(r.Err) || refused(r.Err) || ctx.Err() != nil {
				stopped = r.Err
			}
		}
	}
	if stopped != nil {
		return fmt.Errorf("stopped after line %d; import can be repeated: %w", lines[len(lines)-1], stopped)
	}
	return nil
}
