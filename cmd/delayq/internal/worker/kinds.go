package worker

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/part"
	"github.com/delayq/delayq/handlers/mail"
	"github.com/delayq/delayq/handlers/statement"
	"github.com/delayq/delayq/outbox"
)

// named returns the text of a field of a payload, or "". It is for people: the handlers read
// payloads strictly.
func named(payload []byte, fields ...string) string {
	var all map[string]any
	if json.NewDecoder(bytes.NewReader(payload)).Decode(&all) != nil {
		return ""
	}
	for _, field := range fields {
		if text, ok := all[field].(string); ok {
			return text
		}
	}
	return ""
}

// plural writes a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// A sqlKind executes statements.
type sqlKind struct {
	Database   *databaseConfig
	Isolation  sql.IsolationLevel
	Isolated   bool
	Statements map[string][]string
}

// isolations are the isolation levels that databases have.
var isolations = map[string]sql.IsolationLevel{
	"read_uncommitted": sql.LevelReadUncommitted, "read_committed": sql.LevelReadCommitted,
	"repeatable_read": sql.LevelRepeatableRead, "serializable": sql.LevelSerializable,
}

func (l *loader) sql(o *object) (kind, string) {
	k := &sqlKind{Statements: map[string][]string{}}
	name := o.text("database")
	config, found := l.databases[name]
	switch {
	case !o.has("database"):
		o.missing("database: missing; expected the name of one of databases")
	case !found && name != "":
		l.at(o.fields["database"].value, "database: there is no %s in databases%s", shown(name), didYouMean(name, l.databases))
	}
	k.Database = config
	if text := o.choice("isolation", slices.Sorted(maps.Keys(isolations))...); text != "" {
		k.Isolation, k.Isolated = isolations[text], true
	}
	any := o.each("statements", func(name string, key, value *yaml.Node) {
		nodes := []*yaml.Node{value}
		if value.Kind == yaml.SequenceNode {
			if nodes = value.Content; len(nodes) == 0 {
				l.at(value, "%s: is empty; expected a statement, or a list of them", shown(name))
			}
		}
		for i, n := range nodes {
			n = aliased(n)
			text, ok := l.scalar(n, fmt.Sprintf("statement %d of %s", i+1, shown(name)))
			if ok && config != nil && !config.unusable {
				_, err := statement.New(new(sql.DB), config.dialect, map[string][]string{name: {text}})
				if err != nil {
					l.at(n, "%s", strings.Replace(reason(err), "statement 1 of ", fmt.Sprintf("statement %d of ", i+1), 1))
				}
			}
			k.Statements[name] = append(k.Statements[name], text)
		}
	})
	if !any && !o.has("statements") {
		o.missing("statements: missing; expected names with their statements")
	}
	o.end()
	return k, plural(len(k.Statements), "statement") + " of " + name
}

// didYouMean returns a hint at a name that was meant.
func didYouMean[V any](name string, among map[string]V) string {
	names := slices.Sorted(maps.Keys(among))
	if near := nearest(name, names); near != "" {
		return "; did you mean " + near + "?"
	}
	if len(names) == 0 {
		return ""
	}
	return "; expected one of " + strings.Join(names, ", ")
}

func (k *sqlKind) same() any {
	own, config := *k, *k.Database
	config.migrated, own.Database = nil, &config
	return own
}

func (k *sqlKind) databases() []*databaseConfig { return []*databaseConfig{k.Database} }

func (k *sqlKind) complaint(payload []byte) string { return choose(payload, "statement", k.Statements) }

func (k *sqlKind) task(payload []byte) string { return named(payload, "statement") }

func (k *sqlKind) handler(_ *delayq.Client, open func(*databaseConfig) (*pool, error)) (delayq.Handler, error) {
	p, err := open(k.Database)
	if err != nil {
		return nil, err
	}
	opts := k.Database.outbox()
	if k.Isolated {
		opts = append(opts, statement.Isolation(k.Isolation))
	}
	return statement.New(p.db, k.Database.dialect, k.Statements, opts...)
}

func (d *databaseConfig) outbox() []statement.Option {
	if d.table == "" {
		return nil
	}
	return []statement.Option{statement.Table(d.table)}
}

// inbox returns the outbox and the inbox of a database.
func (d *databaseConfig) inbox() (*outbox.Outbox, *outbox.Inbox, error) {
	var opts []outbox.Option
	if d.table != "" {
		opts = append(opts, outbox.Table(d.table))
	}
	box, err := outbox.New(d.dialect, opts...)
	in, bad := outbox.NewInbox(d.dialect, opts...)
	return box, in, errors.Join(err, bad)
}

// A mailKind sends mails.
type mailKind struct {
	Server    smtpConfig
	From      string
	Timeout   time.Duration
	Templates map[string]mail.Template
	Contents  map[string][sha256.Size]byte // of the files, to see changes

	made delayq.Handler // which has read the files
}

func (l *loader) mail(o *object) (kind, string) {
	k := &mailKind{Templates: map[string]mail.Template{}, Contents: map[string][sha256.Size]byte{}}
	before := len(l.mistakes)
	name := o.text("server")
	config, found := l.smtp[name]
	switch {
	case !o.has("server"):
		o.missing("server: missing; expected the name of one of smtp")
	case !found && name != "":
		l.at(o.fields["server"].value, "server: there is no %s in smtp%s", shown(name), didYouMean(name, l.smtp))
	case found:
		k.Server = *config
	}
	// Parts are tried alone, so that a mistake is found where it is.
	anyServer, anyFrom := mail.Server{Host: "smtp.example"}, "a@b.example"
	anyTemplate := map[string]mail.Template{"x": {Subject: "x", Text: os.DevNull}}
	if k.From = o.text("from"); !o.has("from") {
		o.missing("from: missing; expected an address")
	} else if _, err := l.newMail(anyServer, k.From, anyTemplate); err != nil {
		l.at(o.fields["from"].value, "%s", reason(err))
	}
	k.Timeout = o.span("timeout", time.Millisecond, 10*time.Minute, 30*time.Second)
	any := o.each("templates", func(name string, key, value *yaml.Node) {
		t := l.mapping(value, shown(name))
		bad := len(l.mistakes)
		made := mail.Template{Subject: t.text("subject"), Text: t.text("text"), HTML: t.text("html")}
		for _, path := range []*string{&made.Text, &made.HTML} {
			if *path == "" {
				continue
			}
			*path = l.path(*path)
			text, err := readFile(*path, mostFile)
			if err != nil {
				continue // mail.New says so
			}
			k.Contents[*path] = sha256.Sum256(text)
		}
		t.end()
		if len(l.mistakes) == bad {
			_, err := l.newMail(anyServer, anyFrom, map[string]mail.Template{name: made})
			if err != nil {
				for text := range strings.Lines(reason(err)) {
					l.at(key, "%s", strings.TrimSuffix(text, "\n"))
				}
			}
		}
		k.Templates[name] = made
	})
	if !any && !o.has("templates") {
		o.missing("templates: missing; expected names with their templates")
	}
	o.end()
	if len(l.mistakes) == before && found {
		opts := []mail.Option{mail.Timeout(k.Timeout)}
		if k.Server.ca != "" {
			opts = append(opts, mail.TLS(trusting(k.Server.ca)))
		}
		var err error
		if k.made, err = l.newMail(k.Server.server, k.From, k.Templates, opts...); err != nil {
			l.at(o.node, "%s", reason(err))
		}
	}
	return k, plural(len(k.Templates), "template") + " by " + name
}

// newMail makes the handler of a topic, unless the file is only read.
func (l *loader) newMail(server mail.Server, from string, templates map[string]mail.Template, opts ...mail.Option) (delayq.Handler, error) {
	if l.reads {
		return nil, nil
	}
	return part.NewMail(server, from, templates, opts...)
}

func (k *mailKind) same() any {
	own := *k
	own.made = nil
	return own
}

func (k *mailKind) databases() []*databaseConfig { return nil }

func (k *mailKind) complaint(payload []byte) string { return choose(payload, "template", k.Templates) }

func (k *mailKind) task(payload []byte) string { return named(payload, "template") }

func (k *mailKind) handler(*delayq.Client, func(*databaseConfig) (*pool, error)) (delayq.Handler, error) {
	return k.made, nil
}
