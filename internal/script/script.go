package script

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

// A Script is one transition in Lua. Exactly one Go function calls it.
type Script struct {
	Name         string
	Text, Digest any   // strings, ready to be sent
	keys         []int // of a topic, in the order of the header, as indexes of keyFields
	Reads        bool  // an Inspector may call it, because it writes nothing unless told to repair
}

// newScript reads lua/<name>.lua. The header of a script names its keys (KEYS[1] pool …), and the
// script that follows it in the same call (Then: …), which can name another one. A line
// "-- Uses: …", in the header or below, stands for the parts of the prelude that it names. Every
// call defines each part again, so a script includes only the parts it needs.
func newScript(name string) *Script {
	s := &Script{Name: name}
	pasted := map[string]bool{}
	text := ""
	for one := name; one != ""; {
		body := LuaFile(one)
		text += Paste(body, pasted)
		s.readKeys(body)
		one = headerLine(body, "Then")
	}
	s.Text, s.Digest = text, redis.NewScript(text).Hash()
	return s
}

// Paste puts parts of the prelude in place of the lines that name them, each only once.
func Paste(body string, pasted map[string]bool) string {
	var text strings.Builder
	for line := range strings.Lines(body) {
		parts, uses := strings.CutPrefix(strings.TrimLeft(line, " "), "-- Uses: ")
		if !uses {
			text.WriteString(line)
			continue
		}
		for _, part := range strings.Fields(parts) {
			if !pasted[part] {
				pasted[part] = true
				text.WriteString(LuaFile("prelude/" + part))
			}
		}
	}
	return text.String()
}

// newReadingScript is newScript for one that an Inspector calls.
func newReadingScript(name string) *Script {
	s := newScript(name)
	s.Reads = true
	return s
}

// LuaFile returns the text of a file in lua/, which is embedded in the program.
func LuaFile(name string) string {
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
func (s *Script) readKeys(body string) {
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, "--") {
			return
		}
		s.readKey(line)
	}
}

func (s *Script) readKey(line string) {
	var n int
	var name string
	if count, _ := fmt.Sscanf(line, "-- KEYS[%d] %s", &n, &name); count == 2 {
		s.keys = append(s.keys, make([]int, max(0, n-len(s.keys)))...)
		s.keys[n-1] = keyNamed(name)
	}
}

var (
	Enqueue         = newScript("enqueue")
	EnqueueLater    = newScript("enqueue_later")
	EnqueueNow      = newScript("enqueue_now")
	EnqueueKeyed    = newScript("enqueue_keyed")
	Replace         = newScript("replace")
	EnqueueLinked   = newScript("enqueue_linked")
	FlowStart       = newScript("flow_start")
	FlowRelease     = newScript("flow_release")
	FlowBegin       = newScript("flow_begin")
	FlowSweep       = newScript("flow_sweep")
	FlowCancel      = newScript("flow_cancel")
	FlowAdd         = newScript("flow_add")
	FlowRead        = newReadingScript("flow_read")
	FlowInputs      = newScript("flow_inputs")
	FlowLook        = newScript("flow_look")
	FlowStarted     = newScript("flow_started")
	FlowLost        = newScript("flow_lost")
	Arrive          = newScript("arrive")
	Promote         = newScript("promote")
	Watch           = newScript("watch")
	Ring            = newScript("ring")
	Take            = newScript("take")
	Extend          = newScript("extend")
	Ack             = newScript("ack")
	Again           = newScript("again")
	HandOver        = newScript("hand_over")
	HandOverAgain   = newScript("hand_over_again")
	ParcelPlan      = newScript("parcel_plan")
	ParcelDone      = newScript("parcel_done")
	Retry           = newScript("retry")
	Snooze          = newScript("snooze")
	GiveBack        = newScript("give_back")
	Bury            = newScript("bury")
	BuryWaiting     = newScript("bury_waiting")
	Cancel          = newScript("cancel")
	Delete          = newScript("delete")
	Reschedule      = newScript("reschedule")
	Revive          = newScript("revive")
	Wait            = newScript("wait")
	Note            = newScript("note")
	Recall          = newScript("recall")
	Get             = newReadingScript("get")
	Page            = newReadingScript("page")
	Inspect         = newReadingScript("inspect")
	ListKeys        = newReadingScript("keys")
	Explain         = newReadingScript("explain")
	Pause           = newScript("pause")
	Hold            = newScript("hold")
	SetPriority     = newScript("priority")
	KeyLimits       = newScript("key_limits")
	KeyHold         = newScript("key_hold")
	Unpark          = newScript("unpark")
	Limits          = newScript("limits")
	Prune           = newScript("prune")
	Survey          = newScript("survey")
	Check           = newReadingScript("check")
	Mend            = newReadingScript("mend")
	Heartbeat       = newScript("heartbeat")
	Chronicle       = newScript("chronicle")
	Audit           = newScript("audit")
	RemoveTopic     = newScript("remove_topic")
	ScheduleSet     = newScript("schedule_set")
	ScheduleRemove  = newScript("schedule_remove")
	SchedulePause   = newScript("schedule_pause")
	ScheduleTrigger = newScript("schedule_trigger")
	ScheduleDue     = newScript("schedule_due")
	ScheduleFire    = newScript("schedule_fire")
	ScheduleInfo    = newReadingScript("schedule_info")
	Partition       = newScript("partition")
	PartMap         = newReadingScript("part_map")
	PartClose       = newScript("part_close")
	PartEmpty       = newScript("part_empty")
	PartKeys        = newScript("part_keys")
	PartRetire      = newScript("part_retire")
	PartShare       = newScript("part_share")
)

var All = []*Script{
	Enqueue, EnqueueLater, EnqueueNow, EnqueueKeyed, Replace, Promote, Watch, Ring, Take, Extend, Ack,
	Again, HandOver, HandOverAgain, ParcelPlan, ParcelDone, Retry, Snooze, GiveBack, Bury, BuryWaiting, Cancel, Delete,
	Reschedule, Revive, Wait, Note, Recall, Get, Page, Inspect, ListKeys, Explain, Pause, Hold, Limits, SetPriority, KeyLimits, KeyHold, Unpark,
	Prune, Survey, Check, Mend, Heartbeat, Chronicle, Audit, RemoveTopic, ScheduleSet, ScheduleRemove,
	SchedulePause, ScheduleTrigger, ScheduleDue, ScheduleFire, ScheduleInfo, EnqueueLinked, FlowStart,
	FlowRelease, FlowBegin, FlowSweep, FlowCancel, FlowAdd, FlowRead, FlowInputs, FlowLook, FlowStarted, FlowLost, Arrive,
	Partition, PartMap, PartClose, PartEmpty, PartKeys, PartRetire, PartShare,
}

// Digests returns the name and the SHA-1 digest of every script.
func Digests() map[string]string {
	list := make(map[string]string, len(All))
	for _, s := range All {
		list[s.Name], _ = s.Digest.(string)
	}
	return list
}

// ErrReply is the error for a reply that this release does not understand.
var ErrReply = errors.New("delayq: unexpected reply")

// Letters of replies about many jobs, one letter for each job. Each means the same in every script.
const (
	LetterStored    = 'n' // stored as a new job
	LetterExpired   = 'x' // refused: the job expires before it is due
	LetterScheduled = 's' // refused: the job that has the ID is scheduled
	LetterReady     = 'r' // … is ready
	LetterRunning   = 'u' // … is running
	LetterDead      = 'd' // … is dead
	LetterOurs      = 'o' // done: the lease was the caller's
	LetterLost      = 'l' // refused: the lease is lost
	LetterGone      = 'g' // refused: there is no such job
	LetterFired     = 'f' // the slot is fired
	LetterWaits     = 'w' // the slot still waits
	LetterChanged   = 'c' // refused: changed since the caller read it
	LetterMended    = 'm' // repaired, or needs repair
	LetterKept      = 'k' // unchanged
	LetterDone      = 'e' // the job was done
	LetterBeyond    = 'b' // refused: the job expires by then
	LetterExpires   = 'p' // left for another call: the job expires, and the caller does not know when
	LetterTomb      = 't' // refused: no job has the ID, but it is closed
	LetterElsewhere = 'a' // refused: there is no such job, and the topic is a closed place of another one
	LetterFull      = 'v' // refused: the topic has too many tombs
	LetterDamaged   = 'D' // refused: what Redis has of the job cannot be read
	LetterNoMemory  = 'z' // refused: Redis has no memory left
	LetterNext      = 'q' // left for another call: the job has a successor
	LetterHeir      = 'N' // done, and the successor is enqueued instead of the job that the handler asks for

	LetterIntoScheduled = 'S' // stored: the scheduled job that has the ID has taken the new record
	LetterIntoReady     = 'R' // … the ready one
	LetterIntoRunning   = 'U' // … it is the successor of the running one
)

// Stored reports whether a letter means that an enqueue was carried out.
func Stored(letter byte) bool {
	switch letter {
	case LetterStored, LetterIntoScheduled, LetterIntoReady, LetterIntoRunning:
		return true
	}
	return false
}

// Statuses of replies.
const (
	statusOK    = "ok"
	StatusKnown = "known" // of a script for a lone job: lua/enqueue.lua knows what to do
)

// Reply is the reply of a script: a status, the Redis clock in ms, and the values that the script's
// header names.
type Reply []any

func (r Reply) Status() string {
	if len(r) == 0 {
		return ""
	}
	return r.Text(0)
}

// Text, Number and List read one value. A missing value or one of another kind reads as zero.
func (r Reply) Text(i int) string {
	if i < len(r) {
		s, _ := r[i].(string)
		return s
	}
	return ""
}

func (r Reply) Number(i int) int64 {
	if i < len(r) {
		n, _ := r[i].(int64)
		return n
	}
	return 0
}

func (r Reply) List(i int) Reply {
	if i < len(r) {
		l, _ := r[i].([]any)
		return l
	}
	return nil
}

func (r Reply) Texts() []string {
	list := make([]string, len(r))
	for i := range r {
		list[i] = r.Text(i)
	}
	return list
}

func (r Reply) Now() int64 { return r.Number(1) }

// A processor sends a command to Redis, as a client does.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// felt is a processor whose calls are noted in a pulse.
type felt struct {
	processor
	pulse *link.Pulse
}

func NewFelt(p processor, pulse *link.Pulse) felt { return felt{p, pulse} }

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

// A Listener hears of the calls of scripts.
type Listener interface {
	Listens() bool // otherwise nobody measures how long calls take
	Called(event Event)
}

// An Event is a call of a script that is over.
type Event struct {
	Name     string // of the script
	Topic    string // empty: the call is not about one topic
	Jobs     int
	Duration time.Duration
	Err      error
}

// Caller executes scripts for a client, an inspector or a server.
type Caller struct {
	RDB   processor
	Hooks Listener // nil: none
	// only is nil unless the caller is an inspector's: then scripts are sent so that Redis refuses
	// their writes.
	Only *ReadOnly
}

// ReadOnly sends scripts with EVALSHA_RO and EVAL_RO, which go-redis can send to the replicas of a
// Cluster. Redis knows them from 7.0 on.
type ReadOnly struct {
	refused atomic.Bool // Redis does not know these commands, or the user may not send them
}

// Exec executes a script of a topic with the keys that its header names. receipt is the only one
// that does not belong to the topic alone.
func (c Caller) Exec(ctx context.Context, s *Script, k *Keys, receipt string, jobs int, args ...any) (Reply, error) {
	return c.Call(ctx, s, k.Topic, jobs, k.Of(s, receipt), args...)
}

// Call executes s. An error names the transition and the topic.
func (c Caller) Call(ctx context.Context, s *Script, topic string, jobs int, keys []any, args ...any) (Reply, error) {
	one := NewCall(s, topic, jobs, keys, args)
	c.Do(ctx, one)
	return one.Reply, one.Err
}

// A Request counts how often it has been written to a connection, because go-redis asks its words
// for their bytes each time. It is the word for the number of keys.
type Request struct {
	Keys  int
	times atomic.Int32
}

// MarshalBinary is called by go-redis when it writes the request.
func (r *Request) MarshalBinary() ([]byte, error) {
	r.times.Add(1)
	return strconv.AppendInt(nil, int64(r.Keys), 10), nil
}

// String is for hooks that print the words of a command.
func (r *Request) String() string { return strconv.Itoa(r.Keys) }

// Answered discounts the only write, after a reply that means that nothing was done. After several
// writes one of them may have been carried out.
func (r *Request) Answered() { r.times.CompareAndSwap(1, 0) }

// Judge marks an error after which it is certain that the request was not carried out, because it
// was never written or because Redis has refused the client.
func (r *Request) Judge(err error) error {
	if Locked(err) {
		r.Answered()
		err = Hinted(err)
	}
	switch {
	case r.times.Load() == 0:
		return &undone{err}
	case errors.Is(err, redis.ErrClosed):
		return &written{err}
	}
	return err
}

// Hinted adds to an error what to do about it.
func Hinted(err error) error {
	if Locked(err) {
		return fmt.Errorf("%w (Redis requires a password: set Password, and Username if it is not \"default\", in the options of the go-redis client)", err)
	}
	return err
}

// undone is an error of a request that was certainly not carried out.
type undone struct{ err error }

func (e *undone) Error() string { return e.err.Error() }
func (e *undone) Unwrap() error { return e.err }

// Unsent marks the error of a request after which the caller did not send another one: it leaves no
// doubt about that one.
func Unsent(err error) error {
	if err == nil || Certain(err) {
		return err
	}
	return &undone{err}
}

// written is the error of a closed client about a request that was written before: it may have been
// carried out.
type written struct{ err error }

func (e *written) Error() string { return e.err.Error() }
func (e *written) Unwrap() error { return e.err }

// isUndone reports whether err is of a request that was certainly not carried out.
func isUndone(err error) bool {
	var e *undone
	return errors.As(err, &e)
}

// Locked reports whether Redis requires a password that the client does not send. For a request of
// more than ten words, Redis returns that as a protocol error.
func Locked(err error) bool {
	return Code(err) == codeNoAuth || err != nil && Answered(err) && strings.Contains(err.Error(), "unauthenticated")
}

// Answered reports whether err is a reply of Redis itself, or of a client that is closed.
func Answered(err error) bool {
	var said redis.Error
	return errors.As(err, &said) || errors.Is(err, redis.ErrClosed)
}

// Certain reports whether err leaves no doubt that the call was not carried out. A reply like
// LOADING does leave doubt. It may be the reply to a repetition, by go-redis or by a loop of the
// server, of a call that Redis carried out before it went down.
func Certain(err error) bool {
	var e *written
	return isUndone(err) || !errors.As(err, &e) && (errors.Is(err, redis.ErrClosed) || !Away(err))
}

// Unsure marks an error after which the outcome of a call is unknown. If Redis is away, a client of
// a Cluster asks for its nodes anew.
func Unsure(rdb redis.UniversalClient, err error) error {
	if err == nil {
		return nil
	}
	if Away(err) {
		link.Reload(rdb)
	}
	if Certain(err) {
		return err
	}
	return beneath(ErrUnknown, err)
}
