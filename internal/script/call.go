package script

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/part"
)

// A Call is one execution of a script, and its outcome.
type Call struct {
	script *Script
	Topic  string
	jobs   int
	keys   int // number of keys
	words  []any
	count  Request
	cmd    *redis.Cmd

	Reply Reply
	plain [2]any // the reply, if Redis has sent only its clock
	Err   error
}

// firstWord is the index of the first key in the words of a call.
const firstWord = 3

func NewCall(s *Script, topic string, jobs int, keys, args []any) *Call {
	c := &Call{}
	c.set(s, topic, jobs, keys, len(args))
	c.Add(args...)
	return c
}

// Set makes the zero Call one about so many jobs, with room for so many arguments. The Call must
// not be copied from then on.
func (c *Call) Set(list *KeyList, receipt any, jobs, args int) {
	c.set(list.script, list.topic, jobs, list.keys, args)
	if list.receipt >= 0 {
		c.words[firstWord+list.receipt] = receipt
	}
}

func (c *Call) set(s *Script, topic string, jobs int, keys []any, args int) {
	c.script, c.Topic, c.jobs, c.keys = s, topic, jobs, len(keys)
	c.count.Keys = len(keys)
	// Script.Run of go-redis does the same, but allocates for every key.
	c.words = make([]any, 0, firstWord+len(keys)+args)
	c.words = append(append(c.words, "evalsha", s.Digest, &c.count), keys...)
}

// Add appends arguments. A pointer to a string stands for the string, and costs no allocation.
func (c *Call) Add(args ...any) { c.words = append(c.words, args...) }

// Renew makes c a zero Call for another script that is to do the same, after a reply that means
// that the first one has done nothing now. If go-redis has sent that one again, an earlier copy may
// have been carried out. Then c is not certainly undone if the new call is never sent.
func (c *Call) Renew() {
	c.count.Answered()
	before := c.count.times.Load()
	*c = Call{}
	c.count.times.Store(before)
}

// FirstKey returns the key that selects the node of a cluster.
func (c *Call) FirstKey() string {
	key, _ := c.words[firstWord].(string)
	return key
}

// command makes the command that is sent next.
func (c *Call) command(ctx context.Context) *redis.Cmd {
	c.cmd = redis.NewCmd(ctx, c.words...)
	c.cmd.SetFirstKeyPos(firstWord)
	return c.cmd
}

// Do executes calls at the same time.
func (c Caller) Do(ctx context.Context, calls ...*Call) { c.DoWith(ctx, calls) }

// DoWith executes calls, and other commands with them. It sets the errors of both. The calls are
// sent again if Redis has asked for other words.
func (c Caller) DoWith(ctx context.Context, calls []*Call, others ...redis.Cmder) {
	var start time.Time
	listens := c.Hooks != nil && c.Hooks.Listens()
	if listens {
		start = time.Now()
	}
	if c.Only != nil && !c.Only.refused.Load() {
		for _, call := range calls {
			call.words[0] = "evalsha_ro"
		}
	}
	for again := calls; len(again) > 0 || len(others) > 0; others = nil {
		c.Send(ctx, again, others)
		var next []*Call
		for _, call := range again {
			if c.reword(call) {
				next = append(next, call)
			}
		}
		again = next
	}
	for _, call := range calls {
		c.finish(ctx, call)
		if listens {
			c.Hooks.Called(Event{
				Name: call.script.Name, Topic: part.HomeOf(call.Topic), Jobs: call.jobs, Duration: time.Since(start), Err: call.Err,
			})
		}
	}
}

// reword replaces the words that Redis did not understand, and reports whether to send the call
// again. After NOSCRIPT, when Redis has restarted or failed over, the text of the script goes in
// place of its digest. Redis 6.2 does not know EVALSHA_RO and EVAL_RO.
func (c Caller) reword(call *Call) bool {
	verb, _ := call.words[0].(string)
	plain, ro := strings.CutSuffix(verb, "_ro")
	switch {
	case call.Err == nil:
		return false
	case ro && refusesVerb(call.Err, verb):
		c.Only.refused.Store(true)
		call.words[0] = plain
	case Code(call.Err) == codeNoScript && plain == "evalsha":
		call.words[0], call.words[1] = strings.Replace(verb, "evalsha", "eval", 1), call.script.Text
	default:
		return false
	}
	call.count.Answered()
	return true
}

// refusesVerb reports whether Redis does not know EVALSHA_RO or EVAL_RO, or does not let the user
// send it. miniredis knows them, but counts TIME among the writes.
func refusesVerb(err error, verb string) bool {
	var said redis.Error
	if !errors.As(err, &said) {
		return false
	}
	text := strings.ToLower(said.Error())
	unknown := Code(err) == CodeNoPerm || strings.Contains(text, "unknown command")
	return unknown && strings.Contains(text, verb) || strings.Contains(text, "not allowed in read-only scripts")
}

// Send sends calls and other commands in one round trip and sets the errors of the calls.
func (c Caller) Send(ctx context.Context, calls []*Call, others []redis.Cmder) {
	if len(calls) == 1 && len(others) == 0 {
		calls[0].Err = c.RDB.Process(ctx, calls[0].command(ctx))
		return
	}
	rdb, single := c.RDB.(*redis.Client)
	cluster, _ := c.RDB.(*redis.ClusterClient)
	if single || c.Only != nil {
		cmds := make([]redis.Cmder, 0, len(calls)+len(others))
		for _, call := range calls {
			cmds = append(cmds, call.command(ctx))
		}
		if cmds = append(cmds, others...); single {
			Pipeline(ctx, rdb, cmds)
		} else {
			sendNodes(ctx, cluster, cmds)
		}
		for _, call := range calls {
			call.Err = call.cmd.Err()
		}
		return
	}
	// A pipeline of a cluster runs hooks of the caller on goroutines of go-redis, where nothing
	// contains a panic. Each call has a connection of its own instead.
	var group sync.WaitGroup
	for _, call := range calls {
		contain.Launch(&group, func() {
			call.Err = c.RDB.Process(ctx, call.command(ctx))
		}, func(crash *contain.Crash) {
			call.Err = fmt.Errorf("%w: %w", ErrCutOff, crash)
		})
	}
	for _, cmd := range others {
		contain.Launch(&group, func() {
			if err := sendToMaster(ctx, cluster, cmd); err != nil {
				cmd.SetErr(err)
			}
		}, func(crash *contain.Crash) {
			cmd.SetErr(fmt.Errorf("%w: %w", ErrCut, crash))
		})
	}
	group.Wait()
}

// sendToMaster sends a command to a master, even if the client may read from replicas.
func sendToMaster(ctx context.Context, cluster *redis.ClusterClient, cmd redis.Cmder) error {
	if !cluster.Options().ReadOnly { // then it goes to a master in any case
		return cluster.Process(ctx, cmd)
	}
	node, err := cluster.MasterForKey(ctx, firstKey(cmd))
	if err != nil {
		return err
	}
	return node.Process(ctx, cmd)
}

// Pipeline sends commands in one round trip and sets their errors.
func Pipeline(ctx context.Context, rdb *redis.Client, cmds []redis.Cmder) {
	pipe := rdb.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd) // it only queues
	}
	_, err := pipe.Exec(ctx)
	if failed := func(cmd redis.Cmder) bool { return cmd.Err() != nil }; err != nil && !slices.ContainsFunc(cmds, failed) {
		setErrors(cmds, err) // Redis has returned it to a new connection
	}
}

func setErrors(cmds []redis.Cmder, err error) {
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}

// sendNodes sends commands to the nodes of a Cluster, at the same time and in one round trip for
// each. If the client may read from replicas, it does. The commands that a node has not answered
// are sent once more, to the masters.
func sendNodes(ctx context.Context, cluster *redis.ClusterClient, cmds []redis.Cmder) {
	spread(ctx, NodesOf(cluster), cmds)
	var unanswered []redis.Cmder
	for _, cmd := range cmds {
		switch err := cmd.Err(); {
		case err == nil || ctx.Err() != nil:
		case !Answered(err):
			unanswered = append(unanswered, cmd)
		case isAway(err): // a slot has moved, or moves: the client of the cluster follows it
			cmd.SetErr(nil)
			_ = cluster.Process(ctx, cmd) // it sets the error
		}
	}
	if len(unanswered) > 0 {
		link.Reload(cluster)
		setErrors(unanswered, nil)
		spread(ctx, cluster.MasterForKey, unanswered)
	}
}

// A NodeFinder returns the node that serves a key.
type NodeFinder func(ctx context.Context, key string) (*redis.Client, error)

// NodesOf returns the finder for reads: replicas too, if the client may read from them.
func NodesOf(cluster *redis.ClusterClient) NodeFinder {
	if cluster.Options().ReadOnly {
		return cluster.SlaveForKey
	}
	return cluster.MasterForKey
}

// spread sends commands to nodes, one pipeline for each. All commands about a topic go to the same
// node, because two replicas can show it at two times.
func spread(ctx context.Context, find NodeFinder, cmds []redis.Cmder) {
	batches := make(map[*redis.Client][]redis.Cmder)
	nodes := make(map[string]*redis.Client) // by hash tag
	for _, cmd := range cmds {
		key := firstKey(cmd)
		tag, _, _ := strings.Cut(key, "}")
		node := nodes[tag]
		if node == nil {
			var err error
			if node, err = find(ctx, key); err != nil {
				cmd.SetErr(err)
				continue
			}
			nodes[tag] = node
		}
		batches[node] = append(batches[node], cmd)
	}
	var group sync.WaitGroup
	for node, some := range batches {
		contain.Launch(&group, func() {
			Pipeline(ctx, node, some)
		}, func(crash *contain.Crash) {
			setErrors(some, fmt.Errorf("%w: %w", ErrCut, crash))
		})
	}
	group.Wait()
}

// firstKey returns the first key of a script call, or the first argument of another command.
func firstKey(cmd redis.Cmder) string {
	args, at := cmd.Args(), 1
	if strings.HasPrefix(cmd.Name(), "eval") {
		at = firstWord
	}
	if at >= len(args) {
		return ""
	}
	key, _ := args[at].(string)
	return key
}

// finish reads the reply of a call, or completes its error.
func (c Caller) finish(ctx context.Context, call *Call) {
	if call.Err == nil {
		now := call.cmd.Val()
		if _, plain := now.(int64); plain { // see lua/enqueue_later.lua
			call.plain = [2]any{statusOK, now}
			call.Reply = call.plain[:]
		} else {
			call.Reply, call.Err = call.cmd.Slice()
		}
	}
	place := Place{Call: call.script.Name, Topic: call.Topic}
	switch {
	case call.Err != nil:
		call.Err = place.At(c.Blame(ctx, call.count.Judge(call.Err), call.words[firstWord:firstWord+call.keys]...))
	case len(call.Reply) < 2 || call.Reply.Status() == "":
		call.Err = place.At(ErrReply)
	}
}

// ErrUnknown is the outcome of a request that was sent and that Redis has not answered.
var ErrUnknown = errors.New("delayq: no answer from Redis, outcome unknown")

// ErrCut is the reason of a call that has ended its goroutine, as a hook of the caller's go-redis
// client can. ErrCutOff is its outcome: it may have been carried out.
var (
	ErrCut    = errors.New("the call was cut off")
	ErrCutOff = fmt.Errorf("%w: %w", ErrUnknown, ErrCut)
)
