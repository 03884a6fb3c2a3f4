package delayq

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A script is one transition in Lua. Each is called from exactly one Go function.
type script struct {
	name         string
	text, digest any   // strings, ready to be sent
	keys         []int // of a topic, in the order of the header, as indexes of keyFields
}

// luaFiles holds the scripts and the parts of their prelude.
//
//go:embed lua
var luaFiles embed.FS

// newScript reads lua/<name>.lua. The header of a script says which keys it gets (KEYS[1] pool …), which
// parts of the prelude stand before it (Uses: …), and which script follows it in the same call (Then: …).
// Each part is defined again in every call, so none is there without need.
func newScript(name string) *script {
	body := luaFile(name)
	s := &script{name: name}
	var text strings.Builder
	for _, part := range strings.Fields(headerLine(body, "Uses")) {
		text.WriteString(luaFile("prelude/" + part))
	}
	text.WriteString(body)
	if then := headerLine(body, "Then"); then != "" {
		next := luaFile(then)
		text.WriteString(next)
		s.readKeys(next)
	}
	s.readKeys(body)
	s.text, s.digest = text.String(), redis.NewScript(text.String()).Hash()
	return s
}

// luaFile is the text of a file in lua/, which is part of the program.
func luaFile(name string) string {
	text, _ := luaFiles.ReadFile("lua/" + name + ".lua")
	return string(text)
}

// headerLine is what follows a word and a colon in the header of a script.
func headerLine(body, word string) string {
	for line := range strings.Lines(body) {
		if after, ok := strings.CutPrefix(line, "-- "+word+": "); ok {
			return strings.TrimSpace(after)
		}
		if !strings.HasPrefix(line, "--") {
			break
		}
	}
	return ""
}

// readKeys reads the KEYS lines of a header.
func (s *script) readKeys(body string) {
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, "--") {
			return
		}
		var n int
		var name string
		if count, _ := fmt.Sscanf(line, "-- KEYS[%d] %s", &n, &name); count < 2 {
			continue
		}
		s.keys = append(s.keys, make([]int, max(0, n-len(s.keys)))...)
		s.keys[n-1] = keyNamed(name)
	}
}

var (
	enqueueScript         = newScript("enqueue")
	replaceScript         = newScript("replace")
	promoteScript         = newScript("promote")
	idleScript            = newScript("idle")
	takeScript            = newScript("take")
	extendScript          = newScript("extend")
	ackScript             = newScript("ack")
	againScript           = newScript("again")
	retryScript           = newScript("retry")
	snoozeScript          = newScript("snooze")
	giveBackScript        = newScript("give_back")
	buryScript            = newScript("bury")
	cancelScript          = newScript("cancel")
	deleteScript          = newScript("delete")
	rescheduleScript      = newScript("reschedule")
	reviveScript          = newScript("revive")
	getScript             = newScript("get")
	listScript            = newScript("list")
	inspectScript         = newScript("inspect")
	pauseScript           = newScript("pause")
	pruneScript           = newScript("prune")
	checkScript           = newScript("check")
	mendScript            = newScript("mend")
	heartbeatScript       = newScript("heartbeat")
	scheduleSetScript     = newScript("schedule_set")
	scheduleRemoveScript  = newScript("schedule_remove")
	schedulePauseScript   = newScript("schedule_pause")
	scheduleTriggerScript = newScript("schedule_trigger")
	scheduleDueScript     = newScript("schedule_due")
	scheduleFireScript    = newScript("schedule_fire")
	scheduleInfoScript    = newScript("schedule_info")
)

var allScripts = []*script{
	enqueueScript, replaceScript, promoteScript, idleScript, takeScript, extendScript, ackScript,
	againScript, retryScript, snoozeScript, giveBackScript, buryScript, cancelScript, deleteScript,
	rescheduleScript, reviveScript, getScript, listScript, inspectScript, pauseScript,
	pruneScript, checkScript, mendScript, heartbeatScript, scheduleSetScript, scheduleRemoveScript,
	schedulePauseScript, scheduleTriggerScript, scheduleDueScript, scheduleFireScript, scheduleInfoScript,
}

// Scripts gives the name and the SHA-1 digest of every script that delayq runs, as SLOWLOG and MONITOR show them.
func Scripts() map[string]string {
	digests := make(map[string]string, len(allScripts))
	for _, s := range allScripts {
		digests[s.name], _ = s.digest.(string)
	}
	return digests
}

// ControlChannel is the pub/sub channel over which the clients and servers of a prefix wake and tell each other.
func ControlChannel(prefix string) string { return controlChannel(prefix) }

// errReply says that a script answered what this release does not understand.
var errReply = errors.New("delayq: unexpected reply")

// Letters of replies about many jobs, one for each. Each means the same in every script.
const (
	letterStored    = 'n' // a new job
	letterExpired   = 'x' // refused: the job expires before it is due
	letterScheduled = 's' // refused: the job that has the ID is scheduled
	letterReady     = 'r' // … is ready
	letterRunning   = 'u' // … is running
	letterDead      = 'd' // … is dead
	letterOurs      = 'o' // done: the lease was the caller's
	letterLost      = 'l' // refused: the lease is lost
	letterGone      = 'g' // refused: the job is gone
	letterFired     = 'f' // the slot is fired
	letterWaits     = 'w' // the slot waits on
	letterChanged   = 'c' // refused: changed since the caller read it
	letterMended    = 'm' // repaired, or to be repaired
	letterKept      = 'k' // left as it is
)

// reply is what a script answers: a status, the Redis clock in ms, and what the script's header says.
type reply []any

func (r reply) status() string {
	if len(r) == 0 {
		return ""
	}
	return r.text(0)
}

// text, number and list read one value; what is not there or not of that kind reads as zero.
func (r reply) text(i int) string {
	if i < len(r) {
		s, _ := r[i].(string)
		return s
	}
	return ""
}

func (r reply) number(i int) int64 {
	if i < len(r) {
		n, _ := r[i].(int64)
		return n
	}
	return 0
}

func (r reply) list(i int) reply {
	if i < len(r) {
		l, _ := r[i].([]any)
		return l
	}
	return nil
}

func (r reply) texts() []string {
	list := make([]string, len(r))
	for i := range r {
		list[i] = r.text(i)
	}
	return list
}

func (r reply) now() int64 { return r.number(1) }

// A processor sends a command to Redis: a client does.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// caller runs scripts for a client or a server and tells the script hooks.
type caller struct {
	rdb   processor
	hooks *hooks
}

// blame adds to an error of Redis about the type of a key which of the keys it is: Redis does not tell. It costs a call for each key, only then.
func (c caller) blame(ctx context.Context, err error, keys ...any) error {
	if err == nil || !answered(err) || !strings.Contains(err.Error(), wrongType) {
		return err
	}
	for _, key := range keys {
		name, _ := key.(string)
		cmd := redis.NewStatusCmd(ctx, "type", name)
		if c.rdb.Process(ctx, cmd) != nil {
			return err // the right is missing, or Redis has gone: what there is must do
		}
		if is, should := cmd.Val(), typeOf(name); is != should && is != "none" {
			return fmt.Errorf("key %q is a %s and not a %s: %w", name, is, should, err)
		}
	}
	return err
}

// wrongKeys is what a script says of keys that it has gone on without, as an error of Redis.
type wrongKeys []string

func (w wrongKeys) Error() string { return fmt.Sprintf("%s %q", wrongType, []string(w)) }

// RedisError tells answered that Redis has said it.
func (w wrongKeys) RedisError() {}

// wrongType is in every error of Redis about the type of a key.
const wrongType = "WRONGTYPE"

// run runs a script of a topic with the keys that its header names. receipt is the one that is not the
// topic's alone.
func (c caller) exec(ctx context.Context, s *script, k *keys, receipt string, jobs int, args ...any) (reply, error) {
	return c.call(ctx, s, k.topic, jobs, k.of(s, receipt), args...)
}

// call runs s. On NOSCRIPT, after a restart or a failover of Redis, the script's text is sent. An error says which transition of
// which topic it was.
func (c caller) call(ctx context.Context, s *script, topic string, jobs int, keys []any, args ...any) (reply, error) {
	var start time.Time
	if len(c.hooks.script) > 0 {
		start = time.Now()
	}
	// Script.Run of go-redis does the same, with an allocation for every key.
	words := make([]any, 0, 3+len(keys)+len(args))
	written := &request{keys: len(keys)}
	words = append(append(append(words, "evalsha", s.digest, written), keys...), args...)
	send := func() (*redis.Cmd, error) {
		cmd := redis.NewCmd(ctx, words...)
		cmd.SetFirstKeyPos(3) // tells the node of a cluster
		return cmd, c.rdb.Process(ctx, cmd)
	}
	cmd, err := send()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		written.answered()
		words[0], words[1] = "eval", s.text
		cmd, err = send()
	}
	var r reply
	if err == nil {
		r, err = cmd.Slice()
	}
	switch {
	case err != nil:
		err = written.judge(err)
		err = located{call: s.name, topic: topic}.at(c.blame(ctx, err, keys...))
	case len(r) < 2 || r.status() == "":
		err = located{call: s.name, topic: topic}.at(errReply)
	}
	if len(c.hooks.script) > 0 {
		c.hooks.tellScript(ScriptEvent{Name: s.name, Topic: topic, Jobs: jobs, Duration: time.Since(start), Err: err})
	}
	return r, err
}

// A request counts how often it has been written to a connection: go-redis asks its words for their bytes
// each time. It is the word that says how many keys there are.
type request struct {
	keys  int
	times atomic.Int32
}

// MarshalBinary is called by go-redis when it writes the request.
func (r *request) MarshalBinary() ([]byte, error) {
	r.times.Add(1)
	return strconv.AppendInt(nil, int64(r.keys), 10), nil
}

// String is for hooks that print the words of a command.
func (r *request) String() string { return strconv.Itoa(r.keys) }

// answered forgets the only writing, whose answer says that nothing was done. After several it may be that
// one of them was carried out.
func (r *request) answered() { r.times.CompareAndSwap(1, 0) }

// judge marks an error after which it is sure that the request was not carried out, because it was never
// written or because Redis has not let the client in.
func (r *request) judge(err error) error {
	if locked(err) {
		r.answered()
		err = fmt.Errorf("%w (Redis wants a password: set Password, and Username if it is not \"default\", in the options of the go-redis client)", err)
	}
	if r.times.Load() == 0 {
		return &undone{err}
	}
	return err
}

// undone is an error of a request that was surely not carried out.
type undone struct{ err error }

func (e *undone) Error() string { return e.err.Error() }
func (e *undone) Unwrap() error { return e.err }

// isUndone reports whether err is of a request that was surely not carried out.
func isUndone(err error) bool {
	var e *undone
	return errors.As(err, &e)
}

// locked reports whether Redis asks for a password that the client does not give. To a request of more
// than ten words it says so as a protocol error.
func locked(err error) bool {
	return redis.HasErrorPrefix(err, "NOAUTH") || err != nil && answered(err) && strings.Contains(err.Error(), "unauthenticated")
}

// answered tells whether Redis itself said err: then it is sure that the call was not carried out.
func answered(err error) bool {
	var said redis.Error
	return errors.As(err, &said) || errors.Is(err, redis.ErrClosed)
}

// certain tells whether err leaves no doubt that the call was not carried out. An answer like LOADING does: it may be that to a repetition, by
// go-redis or by a loop of the server, of a call that Redis had carried out before it went down.
func certain(err error) bool {
	return errors.Is(err, redis.ErrClosed) || isUndone(err) || !away(err)
}
