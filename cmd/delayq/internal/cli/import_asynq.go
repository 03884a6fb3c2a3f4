package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/fromasynq"
)

// What becomes of archived tasks.
const (
	archivedDead   = "dead"
	archivedRevive = "revive"
	archivedSkip   = "skip"
)

var archivedWays = []string{archivedDead, archivedRevive, archivedSkip}

// An asynqImport is one execution of import asynq.
type asynqImport struct {
	*app
	from         connection
	queues       []string
	types        []string
	topics       []string
	archived     string
	groups       bool
	remember     time.Duration
	remove, yes  bool
	client       *delayq.Client
	reader       *fromasynq.Reader
	old          io.Closer // nil: it is that of --redis
	topicOf      func(queue, kind string) string
	at           time.Time // when it began, by Redis's clock
	parts        map[asynqKey]*asynqPart
	sum          asynqTotals
	bySize       map[string]*fromasynq.Size
	servedQueues map[string]int
}

func (a *app) importAsynqCommand() *cobra.Command {
	i := &asynqImport{app: a, archived: archivedDead, remember: 7 * 24 * time.Hour}
	cmd := &cobra.Command{
		Use:   "asynq",
		Short: "Move the tasks that asynq has stored in Redis",
		Long: `Store the pending, scheduled, retried and archived tasks of asynq as jobs, with their ID,
payload, headers and time. Without --yes nothing is stored: the command says how many
tasks would be moved, and which ones cannot be.

A task becomes a job of the topic that has the name of its type. It has the retries that
are left, and the timeout, the deadline and the retention that it had. The header
asynq-queue has the name of its queue. The old queue is not changed unless --delete is
given. The command can be repeated: a task whose job is stored, or has been within the
time of --remember, is counted as a duplicate. An ID that another job has is a conflict.

Active tasks are left to the servers that run them. Stop the servers of asynq first, or
pause the queues. While a server takes tasks from a queue, --yes needs --delete: each
task is then deleted once its job is stored, and the job is taken back if the task had
started in the meantime.`,
		Example: `  delayq import asynq --from redis://old-redis:6379/2
  delayq import asynq --topic email:send=mail --topic 'img:*={queue}.{type}' --yes --delete`,
		Args:              counted(0, 0, "no arguments"),
		ValidArgsFunction: a.completeArgs(nothing),
		RunE:              func(cmd *cobra.Command, _ []string) error { return i.run(a.act(cmd.Context())) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&i.from.url, "from", "", "`URL` of the Redis of asynq, if it is not that of --redis")
	f.StringVar(&i.from.passwordFile, "from-password-file", "", "read the password for --from from this `file`; DELAYQ_FROM_PASSWORD has it too")
	f.StringSliceVar(&i.queues, "queues", nil, "only these `queues`, with commas between them; default: all")
	f.StringSliceVar(&i.types, "types", nil, "only tasks of these `types`; mail:* has all that begin with mail:")
	f.StringArrayVar(&i.topics, "topic", nil, "`TYPE=TOPIC` for tasks of a type; the topic can have {type} and {queue} in it, and the first that fits counts")
	f.StringVar(&i.archived, "archived", i.archived, "what archived tasks become: "+strings.Join(archivedWays, ", "))
	f.BoolVar(&i.groups, "groups", false, "move tasks that wait in groups too; the group becomes the key of the job")
	f.Var(&duration{&i.remember}, "remember", "store no task again within this time after its job was due, although the job has run; 0s: do not remember")
	f.BoolVar(&i.remove, "delete", false, "delete each task from asynq when its job is stored")
	f.BoolVar(&i.yes, "yes", false, "do it")
	a.choices(cmd, "archived", archivedWays)
	return cmd
}

func (i *asynqImport) run(ctx context.Context) error {
	if err := i.check(); err != nil {
		return err
	}
	defer func() {
		if i.old != nil {
			_ = i.old.Close() // nothing is in flight any more
		}
	}()
	if err := i.connect(ctx); err != nil {
		return err
	}
	if err := i.survey(ctx); err != nil {
		return err
	}
	if i.yes && !i.remove {
		for _, queue := range i.queues {
			if i.served(queue) {
				return &exitCode{exitConflict, fmt.Sprintf(
					"%s of asynq takes tasks from the queue %q, so what is copied would run twice: stop it, pause the queue, or give --delete", count(i.servedQueues[queue], "server"), queue)}
			}
		}
	}
	var err error
	for _, queue := range i.queues {
		if err = i.queue(ctx, queue); err != nil {
			err = fmt.Errorf("queue %q: %w; the command can be repeated", queue, err)
			break
		}
	}
	if i.sum.Stored > 0 && i.yes {
		noted := i.note(ctx, i.client, "import", "", "", "asynq: "+strings.Join(i.queues, ", "), i.sum.Stored)
		if err == nil {
			err = noted
		}
	}
	if written := i.write(); err == nil {
		err = written
	}
	switch {
	case err != nil:
		return err
	case i.sum.Failed+i.sum.Conflicts > 0:
		return &exitCode{code: exitPartly}
	}
	return nil
}

// check looks at the flags.
func (i *asynqImport) check() (err error) {
	switch {
	case i.format == formatID:
		return usage("-o id: parts of a queue have no ID")
	case !slices.Contains(archivedWays, i.archived):
		return usage("--archived %q: allowed are %s", i.archived, strings.Join(archivedWays, ", "))
	case i.remember < 0:
		return usage("--remember %v: must not be negative", i.remember)
	case i.from.url == "" && i.from.passwordFile != "":
		return usage("--from-password-file: there is no --from")
	case hasPassword(i.from.url):
		return usage("--from: a password on the command line is visible to other users; use --from-password-file or DELAYQ_FROM_PASSWORD")
	}
	i.topicOf, err = asynqTopics(i.topics)
	return err
}

// asynqTopics returns what says to which topic a task goes.
func asynqTopics(rules []string) (func(queue, kind string) string, error) {
	type rule struct{ kind, topic string }
	var list []rule
	for _, text := range rules {
		at := strings.LastIndexByte(text, '=')
		if at <= 0 || at == len(text)-1 {
			return nil, usage("--topic %q: must be TYPE=TOPIC", text)
		}
		r := rule{text[:at], text[at+1:]}
		rest := strings.NewReplacer("{type}", "", "{queue}", "").Replace(r.topic)
		if strings.ContainsAny(rest, "{}#*") {
			return nil, usage("--topic %q: a topic has no {, }, # or *, except for {type} and {queue}", text)
		}
		list = append(list, r)
	}
	return func(queue, kind string) string {
		for _, r := range list {
			if asynqTypeFits(r.kind, kind) {
				return strings.NewReplacer("{type}", kind, "{queue}", queue).Replace(r.topic)
			}
		}
		return kind
	}, nil
}

// asynqTypeFits reports whether a type is the one that is named, or begins so if * follows.
func asynqTypeFits(named, kind string) bool {
	if head, ok := strings.CutSuffix(named, "*"); ok {
		return strings.HasPrefix(kind, head)
	}
	return named == kind
}

// connect makes the clients.
func (i *asynqImport) connect(ctx context.Context) (err error) {
	if i.client, err = i.app.queue(); err != nil {
		return err
	}
	old, err := i.redis()
	if err != nil {
		return err
	}
	if i.from.url != "" {
		i.from.timeout, i.from.password = i.connection.timeout, i.getenv(envPrefix+"FROM_PASSWORD")
		if strings.HasPrefix(i.from.url, "rediss:") {
			i.from.ca, i.from.cert, i.from.key = i.ca, i.cert, i.key
		}
		if old, err = i.dial(&i.from); err != nil {
			var said *exitCode
			if errors.As(err, &said) {
				said.text = strings.NewReplacer("--redis:", "--from:", "--password-file", "--from-password-file", "DELAYQ_PASSWORD", "DELAYQ_FROM_PASSWORD").Replace(said.text)
			}
			return err
		}
		i.old = old
	}
	i.reader = fromasynq.New(old)
	i.at, err = i.app.now(ctx)
	return err
}

// survey finds out which queues there are, how large they are, and who serves them.
func (i *asynqImport) survey(ctx context.Context) error {
	known, err := i.reader.Queues(ctx)
	if err != nil {
		return fmt.Errorf("asynq: %w", err)
	}
	if len(i.queues) == 0 {
		i.queues = known
	}
	for _, queue := range i.queues {
		if !slices.Contains(known, queue) {
			return &exitCode{exitNotFound, fmt.Sprintf("asynq has no queue %q here; it has %s", queue, orDash(strings.Join(known, ", ")))}
		}
	}
	if i.servedQueues, err = i.reader.Servers(ctx); err != nil {
		return fmt.Errorf("servers of asynq: %w", err)
	}
	i.parts, i.bySize = map[asynqKey]*asynqPart{}, map[string]*fromasynq.Size{}
	for _, queue := range i.queues {
		size, err := i.reader.Size(ctx, queue)
		if err != nil {
			return fmt.Errorf("asynq: %w", err)
		}
		i.bySize[queue] = size
		i.sum.Active += size.Tasks[fromasynq.Active]
		i.sum.Completed += size.Tasks[fromasynq.Completed]
		i.sum.Sets += size.Sets
	}
	return nil
}

// served reports whether a server takes tasks from a queue.
func (i *asynqImport) served(queue string) bool {
	return i.servedQueues[queue] > 0 && !i.bySize[queue].Paused
}

// queue moves the tasks of a queue. A task becomes pending in time, so these come last.
func (i *asynqImport) queue(ctx context.Context, queue string) error {
	served := i.served(queue)
	see := func(tasks []*fromasynq.Task) (int, error) { return i.batch(ctx, tasks, served) }
	for _, state := range []fromasynq.State{fromasynq.Scheduled, fromasynq.Retry, fromasynq.Archived} {
		if state == fromasynq.Archived && i.archived == archivedSkip {
			i.sum.Left += i.bySize[queue].Tasks[state]
			continue
		}
		if err := i.reader.Each(ctx, queue, state, "", served, see); err != nil {
			return err
		}
	}
	err := i.reader.EachGroup(ctx, queue, func(group string, n int64) error {
		if i.groups {
			return i.reader.Each(ctx, queue, fromasynq.Aggregating, group, served, see)
		}
		i.sum.Left += n
		if i.sum.Groups++; len(i.sum.GroupNames) < samples {
			i.sum.GroupNames = append(i.sum.GroupNames, strings.ToValidUTF8(group, "\uFFFD"))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return i.reader.Each(ctx, queue, fromasynq.Pending, "", served, see)
}

// write writes the outcome.
func (i *asynqImport) write() error {
	keys := slices.SortedFunc(maps.Keys(i.parts), asynqKey.compare)
	list := make([]*asynqPart, len(keys))
	for n, key := range keys {
		list[n] = i.parts[key]
	}
	i.sum.DryRun = !i.yes
	if err := all(i.app, i.asynqView(), list, &i.sum); err != nil {
		return err
	}
	if err := i.flush(); err != nil || i.format == formatJSON {
		return err
	}
	s := &i.sum
	for _, p := range s.Problems {
		i.say("%s %s: %s", p.Queue, idText(p.exact()), p.Error)
	}
	if more := s.Failed + s.Conflicts - int64(len(s.Problems)); more > 0 {
		i.say("… and %s more", number(more))
	}
	for _, queue := range i.queues {
		if n := i.servedQueues[queue]; n > 0 {
			paused := ""
			if i.bySize[queue].Paused {
				paused = ", which is paused"
			}
			i.say("%s of asynq runs on the queue %s%s", count(n, "server"), queue, paused)
		}
	}
	if s.Active > 0 {
		i.say("%s: left to the servers of asynq", count(s.Active, "active task"))
	}
	if s.Completed > 0 {
		i.say("%s with a result: not moved", count(s.Completed, "completed task"))
	}
	if s.Groups > 0 {
		names := strings.Join(s.GroupNames, ", ")
		if s.Groups > int64(len(s.GroupNames)) {
			names += ", …"
		}
		i.say("%s of tasks left: %s; --groups moves such tasks", count(s.Groups, "group"), names)
	}
	if s.Sets > 0 {
		i.say("%s of a group: left to the servers of asynq, which make one task of each", count(s.Sets, "set"))
	}
	if s.Unique > 0 {
		i.say("%s with a unique lock, which is not moved: in delayq the ID is unique", count(s.Unique, "task"))
	}
	i.say("%s", i.outcome())
	return nil
}

// outcome returns the sentence about all of it.
func (i *asynqImport) outcome() string {
	s := &i.sum
	text := count(s.Stored, "job")
	if i.yes {
		text += " stored"
	} else {
		text += " would be stored"
	}
	text += fmt.Sprintf(", %s", count(s.Duplicates, "duplicate"))
	for _, c := range []struct {
		n    int64
		word string
	}{{s.Conflicts, "in conflict"}, {s.Left, "left"}, {s.Failed, "failed"}, {s.Started, "started in asynq meanwhile"}, {s.Deleted, "deleted from asynq"}} {
		if c.n > 0 {
			text += fmt.Sprintf(", %s %s", number(c.n), c.word)
		}
	}
	if !i.yes {
		text += "; nothing was changed: --yes does it"
	}
	return text
}

// generatedID is what asynq gives a task that has no ID of its own.
var generatedID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
