package delayq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/lua"
)

// A script is one transition in Lua. Exactly one Go function calls it.
type script struct {
	name         string
	text, digest any   // strings, ready to be sent
	keys         []int // of a topic, in the order of the header, as indexes of keyFields
	reads        bool  // an Inspector may call it, because it writes nothing unless told to repair
}

// newScript reads lua/<name>.lua. The header of a script names its keys (KEYS[1] pool …), the parts
// of the prelude that precede it (Uses: …), and the script that follows it in the same call (Then:
// …). Every call defines each part again, so a script includes only the parts it needs.
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

// newReadingScript is newScript for one that an Inspector calls.
func newReadingScript(name string) *script {
	s := newScript(name)
	s.reads = true
	return s
}

// luaFile returns the text of a file in lua/, which is embedded in the program.
func luaFile(name string) string {
	text, _ := lua.Files.ReadFile(name + ".lua")
	return string(text)
}

// headerLine returns the text after a word and a colon in the header of a script. If there are
// several such lines, their texts are joined by spaces.
func headerLine(body, word string) string {
	var texts []string
	for line := range strings.Lines(body) {
		if after, ok := strings.CutPrefix(line, "-- "+word+": "); ok {
			texts = append(texts, strings.TrimSpace(after))
		}
		if !strings.HasPrefix(line, "--") {
			break
		}
	}
	return strings.Join(texts, " ")
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
	enqueueKeyedScript    = newScript("enqueue_keyed")
	replaceScript         = newScript("replace")
	promoteScript         = newScript("promote")
	watchScript           = newScript("watch")
	ringScript            = newScript("ring")
	takeScript            = newScript("take")
	extendScript          = newScript("extend")
	ackScript             = newScript("ack")
	againScript           = newScript("again")
	retryScript           = newScript("retry")
	snoozeScript          = newScript("snooze")
	giveBackScript        = newScript("give_back")
	buryScript            = newScript("bury")
	buryWaitingScript     = newScript("bury_waiting")
	cancelScript          = newScript("cancel")
	deleteScript          = newScript("delete")
	rescheduleScript      = newScript("reschedule")
	reviveScript          = newScript("revive")
	getScript             = newReadingScript("get")
	pageScript            = newReadingScript("page")
	inspectScript         = newReadingScript("inspect")
	keysScript            = newReadingScript("keys")
	explainScript         = newReadingScript("explain")
	pauseScript           = newScript("pause")
	holdScript            = newScript("hold")
	priorityScript        = newScript("priority")
	keyLimitsScript       = newScript("key_limits")
	keyHoldScript         = newScript("key_hold")
	unparkScript          = newScript("unpark")
	limitsScript          = newScript("limits")
	pruneScript           = newScript("prune")
	surveyScript          = newScript("survey")
	checkScript           = newReadingScript("check")
	mendScript            = newReadingScript("mend")
	heartbeatScript       = newScript("heartbeat")
	chronicleScript       = newScript("chronicle")
	auditScript           = newScript("audit")
	removeTopicScript     = newScript("remove_topic")
	scheduleSetScript     = newScript("schedule_set")
	scheduleRemoveScript  = newScript("schedule_remove")
	schedulePauseScript   = newScript("schedule_pause")
	scheduleTriggerScript = newScript("schedule_trigger")
	scheduleDueScript     = newScript("schedule_due")
	scheduleFireScript    = newScript("schedule_fire")
	scheduleInfoScript    = newReadingScript("schedule_info")
)

var allScripts = []*script{
	enqueueScript, enqueueKeyedScript, replaceScript, promoteScript, watchScript, ringScript, takeScript, extendScript, ackScript,
	againScript, retryScript, snoozeScript, giveBackScript, buryScript, buryWaitingScript, cancelScript, deleteScript,
	rescheduleScript, reviveScript, getScript, pageScript, inspectScript, keysScript, explainScript, pauseScript, holdScript, limitsScript, priorityScript, keyLimitsScript, keyHoldScript, unparkScript,
	pruneScript, surveyScript, checkScript, mendScript, heartbeatScript, chronicleScript, auditScript, removeTopicScript, scheduleSetScript, scheduleRemoveScript,
	schedulePauseScript, scheduleTriggerScript, scheduleDueScript, scheduleFireScript, scheduleInfoScript,
}

// digests returns the name and the SHA-1 digest of every script.
func digests() map[string]string {
	list := make(map[string]string, len(allScripts))
	for _, s := range allScripts {
		list[s.name], _ = s.digest.(string)
	}
	return list
}

// errReply is the error for a reply that this release does not understand.
var errReply = errors.New("delayq: unexpected reply")

// Letters of replies about many jobs, one letter for each job. Each means the same in every script.
const (
	letterStored    = 'n' // stored as a new job
	letterExpired   = 'x' // refused: the job expires before it is due
	letterScheduled = 's' // refused: the job that has the ID is scheduled
	letterReady     = 'r' // … is ready
	letterRunning   = 'u' // … is running
	letterDead      = 'd' // … is dead
	letterOurs      = 'o' // done: the lease was the caller's
	letterLost      = 'l' // refused: the lease is lost
	letterGone      = 'g' // refused: there is no such job
	letterFired     = 'f' // the slot is fired
	letterWaits     = 'w' // the slot still waits
	letterChanged   = 'c' // refused: changed since the caller read it
	letterMended    = 'm' // repaired, or needs repair
	letterKept      = 'k' // unchanged
	letterDone      = 'e' // the job was done
	letterBeyond    = 'b' // refused: the job expires by then
	letterExpires   = 'p' // left for another call: the job expires, and the caller does not know when
)

// reply is the reply of a script: a status, the Redis clock in ms, and the values that the script's
// header names.
type reply []any

func (r reply) status() string {
	if len(r) == 0 {
		return ""
	}
	return r.text(0)
}

// text, number and list read one value. A missing value or one of another kind reads as zero.
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

// A processor sends a command to Redis, as a client does.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// felt is a processor whose calls are noted in a pulse.
type felt struct {
	processor
	pulse *link.Pulse
}

func newFelt(p processor, pulse *link.Pulse) felt { return felt{p, pulse} }

// Process implements processor.
func (f felt) Process(ctx context.Context, cmd redis.Cmder) error {
	began := time.Now()
	err := f.processor.Process(ctx, cmd)
	key := ""
	if args := cmd.Args(); len(args) > 3 { // a script and its number of keys precede the first key
		key, _ = args[3].(string)
	}
	return f.pulse.Feel(key, began, err)
}

// A listener hears of the calls of scripts.
type listener interface {
	Listens() bool // otherwise nobody measures how long calls take
	Called(event callEvent)
}

// A callEvent is a call of a script that is over.
type callEvent struct {
	Name     string // of the script
	Topic    string // empty: the call is not about one topic
	Jobs     int
	Duration time.Duration
	Err      error
}

// caller executes scripts for a client, an inspector or a server.
type caller struct {
	rdb   processor
	hooks listener // nil: none
	// only is nil unless the caller is an inspector's: then scripts are sent so that Redis refuses
	// their writes.
	only *readOnly
}

// readOnly sends scripts with EVALSHA_RO and EVAL_RO, which go-redis can send to the replicas of a
// Cluster. Redis knows them from 7.0 on.
type readOnly struct {
	refused atomic.Bool // Redis does not know these commands, or the user may not send them
}

// blame adds the name of the key to an error of Redis about the type of a key, because Redis does
// not name it. Only then it costs a call for each key.
func (c caller) blame(ctx context.Context, err error, keys ...any) error {
	if err == nil || !answered(err) || redisCode(err) != codeWrongType {
		return err
	}
	for _, key := range keys {
		name, _ := key.(string)
		cmd := redis.NewStatusCmd(ctx, "type", name)
		if c.rdb.Process(ctx, cmd) != nil {
			return err // the right is missing or Redis is away: return the error as it is
		}
		if is, should := cmd.Val(), typeOf(name); is != should && is != "none" {
			return fmt.Errorf("key %q is a %s and not a %s: %w", name, is, should, err)
		}
	}
	return err
}

// wrongKeys lists keys of the wrong type that a script has skipped, as an error of Redis.
type wrongKeys []string

func (w wrongKeys) Error() string { return fmt.Sprintf("%s %q", codeWrongType, []string(w)) }

// RedisError marks wrongKeys as an error of Redis, for answered.
func (w wrongKeys) RedisError() {}

// exec executes a script of a topic with the keys that its header names. receipt is the only one
// that does not belong to the topic alone.
func (c caller) exec(ctx context.Context, s *script, k *keys, receipt string, jobs int, args ...any) (reply, error) {
	return c.call(ctx, s, k.topic, jobs, k.of(s, receipt), args...)
}

// call executes s. An error names the transition and the topic.
func (c caller) call(ctx context.Context, s *script, topic string, jobs int, keys []any, args ...any) (reply, error) {
	one := newScriptCall(s, topic, jobs, keys, args)
	c.do(ctx, one)
	return one.reply, one.err
}

// A request counts how often it has been written to a connection, because go-redis asks its words
// for their bytes each time. It is the word for the number of keys.
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

// answered discounts the only write, after a reply that means that nothing was done. After several
// writes one of them may have been carried out.
func (r *request) answered() { r.times.CompareAndSwap(1, 0) }

// judge marks an error after which it is certain that the request was not carried out, because it
// was never written or because Redis has refused the client.
func (r *request) judge(err error) error {
	if locked(err) {
		r.answered()
		err = hinted(err)
	}
	if r.times.Load() == 0 {
		return &undone{err}
	}
	return err
}

// hinted adds to an error what to do about it.
func hinted(err error) error {
	if locked(err) {
		return fmt.Errorf("%w (Redis requires a password: set Password, and Username if it is not \"default\", in the options of the go-redis client)", err)
	}
	return err
}

// undone is an error of a request that was certainly not carried out.
type undone struct{ err error }

func (e *undone) Error() string { return e.err.Error() }
func (e *undone) Unwrap() error { return e.err }

// isUndone reports whether err is of a request that was certainly not carried out.
func isUndone(err error) bool {
	var e *undone
	return errors.As(err, &e)
}

// locked reports whether Redis requires a password that the client does not send. For a request of
// more than ten words, Redis returns that as a protocol error.
func locked(err error) bool {
	return redisCode(err) == codeNoAuth || err != nil && answered(err) && strings.Contains(err.Error(), "unauthenticated")
}

// answered reports whether err is a reply of Redis itself: then the call was certainly not carried
// out.
func answered(err error) bool {
	var said redis.Error
	return errors.As(err, &said) || errors.Is(err, redis.ErrClosed)
}

// certain reports whether err leaves no doubt that the call was not carried out. A reply like
// LOADING does leave doubt. It may be the reply to a repetition, by go-redis or by a loop of the
// server, of a call that Redis carried out before it went down.
func certain(err error) bool {
	return errors.Is(err, redis.ErrClosed) || isUndone(err) || !away(err)
}
