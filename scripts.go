package delayq

import (
	"context"
	_ "embed" // the scripts
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
	text, digest any // strings, ready to be sent
}

func newScript(name, body string, parts ...string) *script {
	text := strings.Join(parts, "") + body
	return &script{name: name, text: text, digest: redis.NewScript(text).Hash()}
}

// The parts of the prelude, put before the scripts that use them: each is defined anew in every call, so none is there for nothing.
var (
	//go:embed lua/prelude/now.lua
	nowPart string

	//go:embed lua/prelude/receipt.lua
	receiptPart string

	//go:embed lua/prelude/stats.lua
	statsPart string

	//go:embed lua/prelude/sizes.lua
	sizesPart string

	//go:embed lua/prelude/terms.lua
	termsPart string

	//go:embed lua/prelude/unready.lua
	unreadyPart string

	//go:embed lua/prelude/measure.lua
	measurePart string

	//go:embed lua/prelude/lease.lua
	leasePart string

	//go:embed lua/prelude/rows.lua
	rowsPart string

	//go:embed lua/prelude/retain.lua
	retainPart string

	//go:embed lua/prelude/errors.lua
	errorsPart string

	//go:embed lua/prelude/control.lua
	controlPart string

	//go:embed lua/prelude/schedule.lua
	schedulePart string

	//go:embed lua/prelude/runs.lua
	runsPart string

	//go:embed lua/prelude/withdraw.lua
	withdrawPart string
)

var (
	//go:embed lua/enqueue.lua
	enqueueLua    string
	enqueueScript = newScript("enqueue", enqueueLua, nowPart, receiptPart, statsPart, sizesPart, termsPart, controlPart)

	//go:embed lua/replace.lua
	replaceLua    string
	replaceScript = newScript("replace", replaceLua+enqueueLua, nowPart, receiptPart, statsPart, sizesPart, termsPart, leasePart, unreadyPart, controlPart)

	//go:embed lua/promote.lua
	promoteLua    string
	promoteScript = newScript("promote", promoteLua, nowPart, statsPart, leasePart, errorsPart, runsPart)

	//go:embed lua/watch.lua
	watchLua    string
	watchScript = newScript("watch", watchLua, nowPart, leasePart)

	//go:embed lua/take.lua
	takeLua    string
	takeScript = newScript("take", takeLua, nowPart, statsPart, leasePart)

	//go:embed lua/extend.lua
	extendLua    string
	extendScript = newScript("extend", extendLua, nowPart, rowsPart)

	//go:embed lua/ack.lua
	ackLua    string
	ackScript = newScript("ack", ackLua, nowPart, receiptPart, statsPart, leasePart, rowsPart, retainPart, runsPart)

	//go:embed lua/again.lua
	againLua    string
	againScript = newScript("again", againLua, nowPart, receiptPart, statsPart, sizesPart, termsPart, leasePart, rowsPart, retainPart, controlPart, runsPart)

	//go:embed lua/retry.lua
	retryLua    string
	retryScript = newScript("retry", retryLua, nowPart, receiptPart, statsPart, leasePart, rowsPart, errorsPart, runsPart)

	//go:embed lua/snooze.lua
	snoozeLua    string
	snoozeScript = newScript("snooze", snoozeLua, nowPart, receiptPart, statsPart, leasePart, rowsPart)

	//go:embed lua/return.lua
	returnLua    string
	returnScript = newScript("return", returnLua, nowPart, receiptPart, statsPart, leasePart, rowsPart)

	//go:embed lua/bury.lua
	buryLua    string
	buryScript = newScript("bury", buryLua, nowPart, receiptPart, statsPart, leasePart, rowsPart, errorsPart, runsPart)

	//go:embed lua/cancel.lua
	cancelLua    string
	cancelScript = newScript("cancel", cancelLua, nowPart, receiptPart, statsPart, leasePart, controlPart, runsPart, unreadyPart, withdrawPart)

	//go:embed lua/delete.lua
	deleteLua    string
	deleteScript = newScript("delete", deleteLua, nowPart, receiptPart, statsPart)

	//go:embed lua/reschedule.lua
	rescheduleLua    string
	rescheduleScript = newScript("reschedule", rescheduleLua, nowPart, receiptPart, unreadyPart, controlPart)

	//go:embed lua/revive.lua
	reviveLua    string
	reviveScript = newScript("revive", reviveLua, nowPart, receiptPart, statsPart)

	//go:embed lua/get.lua
	getLua    string
	getScript = newScript("get", getLua, nowPart)

	//go:embed lua/list.lua
	listLua    string
	listScript = newScript("list", listLua, nowPart)

	//go:embed lua/inspect.lua
	inspectLua    string
	inspectScript = newScript("inspect", inspectLua, nowPart)

	//go:embed lua/pause.lua
	pauseLua    string
	pauseScript = newScript("pause", pauseLua, nowPart, receiptPart, controlPart)

	//go:embed lua/prune.lua
	pruneLua    string
	pruneScript = newScript("prune", pruneLua, nowPart, receiptPart, measurePart)

	//go:embed lua/check.lua
	checkLua    string
	checkScript = newScript("check", checkLua, nowPart, statsPart, sizesPart, leasePart, measurePart, schedulePart)

	//go:embed lua/mend.lua
	mendLua    string
	mendScript = newScript("mend", mendLua, nowPart, statsPart)

	//go:embed lua/heartbeat.lua
	heartbeatLua    string
	heartbeatScript = newScript("heartbeat", heartbeatLua, nowPart)

	//go:embed lua/schedule.lua
	scheduleLua    string
	scheduleScript = newScript("schedule", scheduleLua, nowPart, receiptPart, controlPart, schedulePart)

	//go:embed lua/unschedule.lua
	unscheduleLua    string
	unscheduleScript = newScript("unschedule", unscheduleLua, nowPart, receiptPart, statsPart, leasePart, controlPart, schedulePart, runsPart, unreadyPart, withdrawPart)

	//go:embed lua/suspend.lua
	suspendLua    string
	suspendScript = newScript("suspend", suspendLua, nowPart, receiptPart, controlPart, schedulePart)

	//go:embed lua/trigger.lua
	triggerLua    string
	triggerScript = newScript("trigger", triggerLua, nowPart, receiptPart, statsPart, sizesPart, controlPart, schedulePart)

	//go:embed lua/due.lua
	dueLua    string
	dueScript = newScript("due", dueLua, nowPart, schedulePart)

	//go:embed lua/fire.lua
	fireLua    string
	fireScript = newScript("fire", fireLua, nowPart, statsPart, sizesPart, leasePart, controlPart, schedulePart, runsPart, unreadyPart, withdrawPart)

	//go:embed lua/describe.lua
	describeLua    string
	describeScript = newScript("describe", describeLua, nowPart, schedulePart, runsPart)
)

var allScripts = []*script{
	enqueueScript, replaceScript, promoteScript, watchScript, takeScript, extendScript, ackScript, againScript, retryScript, snoozeScript, returnScript, buryScript,
	cancelScript, deleteScript, rescheduleScript, reviveScript, getScript, listScript, inspectScript, pauseScript, pruneScript, checkScript, mendScript, heartbeatScript,
	scheduleScript, unscheduleScript, suspendScript, triggerScript, dueScript, fireScript, describeScript,
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

// names makes the list of keys of a call.
func names(keys ...string) []any {
	list := make([]any, len(keys))
	for i, k := range keys {
		list[i] = k
	}
	return list
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
