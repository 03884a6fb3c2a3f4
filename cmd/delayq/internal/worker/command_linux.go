package worker

import (
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/handlers/command"
)

// A commandKind runs commands.
type commandKind struct {
	Single   *commandConfig // nil: Commands
	Commands map[string]commandConfig
}

// A commandConfig is a command of the file.
type commandConfig struct {
	Argv     []string // the first one is a path
	Dir      string
	Env      []string
	As       bool
	UID, GID uint32
	Grace    time.Duration
}

func (l *loader) command(o *object) (kind, string) {
	k := &commandKind{Commands: map[string]commandConfig{}}
	if o.has("argv") {
		c := l.commandOf(o)
		k.Single = &c
		o.get("commands")
		if o.has("commands") {
			l.at(o.key("commands"), "commands: the topic has a single command already; expected either argv or commands")
		}
		o.end()
		detail := ""
		if len(c.Argv) > 0 {
			detail = filepath.Base(c.Argv[0])
		}
		return k, detail
	}
	any := o.each("commands", func(name string, key, value *yaml.Node) {
		of := l.mapping(value, shown(name))
		k.Commands[name] = l.commandOf(of)
		of.end()
	})
	if !any && !o.has("commands") {
		o.missing("command: has no command; expected argv, or commands with their names")
	}
	o.known = append(o.known, "argv")
	o.end()
	return k, plural(len(k.Commands), "command")
}

// commandOf reads a command.
func (l *loader) commandOf(o *object) (c commandConfig) {
	before := len(l.mistakes)
	for i, n := range o.list("argv") {
		text, _ := l.scalar(n, "argv")
		if i == 0 && strings.ContainsRune(text, '/') {
			text = l.path(text)
		}
		c.Argv = append(c.Argv, text)
	}
	if !o.has("argv") {
		o.missing("argv: missing; expected a list of the file and its arguments")
	} else if len(c.Argv) > 0 && len(l.mistakes) == before {
		path, err := exec.LookPath(c.Argv[0])
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err != nil {
			l.at(o.fields["argv"].value.Content[0], "argv: %v", err)
		} else {
			c.Argv[0] = path
		}
	}
	if c.Dir = o.text("dir"); c.Dir != "" {
		c.Dir = l.path(c.Dir)
		if info, err := os.Stat(c.Dir); err != nil {
			l.at(o.fields["dir"].value, "dir: %v", err)
		} else if !info.IsDir() {
			l.at(o.fields["dir"].value, "dir: %s is no folder", shown(c.Dir))
		}
	}
	o.each("env", func(name string, key, value *yaml.Node) {
		text, ok := l.valueAt(value, name, anywhere)
		if !ok {
			return
		}
		if _, err := command.New([]string{"/proc/self/exe"}, command.Env(name+"="+text)); err != nil {
			l.at(key, "env: %s", strings.TrimPrefix(reason(err), "Env: "))
		}
		c.Env = append(c.Env, name+"="+text)
	})
	l.as(o, &c)
	c.Grace = o.span("grace", 0, 10*time.Minute, 5*time.Second)
	if len(l.mistakes) == before {
		if _, err := c.handler(); err != nil {
			l.at(o.node, "%s", reason(err))
		}
	}
	return c
}

// as reads the user and the group of a command.
func (l *loader) as(o *object, c *commandConfig) {
	name, group := o.text("user"), o.text("group")
	if name == "" {
		if group != "" {
			l.at(o.key("group"), "group: needs a user")
		}
		return
	}
	c.As = true
	uid, err := strconv.ParseUint(name, 10, 32)
	c.UID = uint32(uid)
	known, bad := user.Lookup(name)
	if err == nil {
		known, bad = user.LookupId(name)
	}
	switch {
	case bad == nil:
		u, _ := strconv.ParseUint(known.Uid, 10, 32)
		g, _ := strconv.ParseUint(known.Gid, 10, 32)
		c.UID, c.GID = uint32(u), uint32(g)
	case err != nil:
		l.at(o.fields["user"].value, "user: there is no %s; expected a name or an ID", shown(name))
	case group == "":
		l.at(o.fields["user"].value, "user: %s has no group of its own here; expected a group too", shown(name))
	}
	if group == "" {
		return
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	if err != nil {
		found, bad := user.LookupGroup(group)
		if bad != nil {
			l.at(o.fields["group"].value, "group: there is no %s; expected a name or an ID", shown(group))
			return
		}
		gid, _ = strconv.ParseUint(found.Gid, 10, 32)
	}
	c.GID = uint32(gid)
}

func (c *commandConfig) handler() (*command.Handler, error) {
	opts := []command.Option{command.Env(c.Env...), command.Grace(c.Grace)}
	if c.Dir != "" {
		opts = append(opts, command.Dir(c.Dir))
	}
	if c.As {
		opts = append(opts, command.As(c.UID, c.GID))
	}
	return command.New(c.Argv, opts...)
}

func (k *commandKind) same() any { return k }

func (k *commandKind) databases() []*databaseConfig { return nil }

func (k *commandKind) complaint(payload []byte) string {
	if k.Single != nil {
		return ""
	}
	return choose(payload, "command", k.Commands)
}

func (k *commandKind) task(payload []byte) string {
	if k.Single != nil {
		return ""
	}
	return named(payload, "command")
}

func (k *commandKind) handler(*delayq.Client, func(*databaseConfig) (*pool, error)) (delayq.Handler, error) {
	if k.Single != nil {
		return k.Single.handler()
	}
	handlers := map[string]*command.Handler{}
	for _, name := range slices.Sorted(maps.Keys(k.Commands)) {
		c := k.Commands[name]
		h, err := c.handler()
		if err != nil {
			return nil, err
		}
		handlers[name] = h
	}
	return command.NewNamed(handlers)
}
