package delayq

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A scriptCall is one execution of a script, and its outcome.
type scriptCall struct {
	script *script
	topic  string
	jobs   int
	keys   int // number of keys
	words  []any
	count  *request
	cmd    *redis.Cmd

	reply reply
	err   error
}

// firstWord is the index of the first key in the words of a call.
const firstWord = 3

func newScriptCall(s *script, topic string, jobs int, keys, args []any) *scriptCall {
	c := &scriptCall{script: s, topic: topic, jobs: jobs, keys: len(keys), count: &request{keys: len(keys)}}
	// Script.Run of go-redis does the same, but allocates for every key.
	c.words = make([]any, 0, firstWord+len(keys)+len(args))
	c.words = append(append(append(c.words, "evalsha", s.digest, c.count), keys...), args...)
	return c
}

// firstKey returns the key that selects the node of a cluster.
func (c *scriptCall) firstKey() string {
	key, _ := c.words[firstWord].(string)
	return key
}

// command makes the command that is sent next.
func (c *scriptCall) command(ctx context.Context) *redis.Cmd {
	c.cmd = redis.NewCmd(ctx, c.words...)
	c.cmd.SetFirstKeyPos(firstWord)
	return c.cmd
}

// do executes calls at the same time. After NOSCRIPT, when Redis has restarted or failed over, it
// sends the texts of the scripts.
func (c caller) do(ctx context.Context, calls ...*scriptCall) {
	var start time.Time
	if len(c.hooks.script) > 0 {
		start = time.Now()
	}
	c.send(ctx, calls)
	var unknown []*scriptCall
	for _, call := range calls {
		if redisCode(call.err) == codeNoScript {
			call.count.answered()
			call.words[0], call.words[1] = "eval", call.script.text
			unknown = append(unknown, call)
		}
	}
	if len(unknown) > 0 {
		c.send(ctx, unknown)
	}
	for _, call := range calls {
		c.finish(ctx, call)
		if len(c.hooks.script) > 0 {
			c.hooks.fireScript(ScriptEvent{
				Name: call.script.name, Topic: call.topic, Jobs: call.jobs, Duration: time.Since(start), Err: call.err,
			})
		}
	}
}

// send sends calls in one round trip and sets their errors.
func (c caller) send(ctx context.Context, calls []*scriptCall) {
	if len(calls) == 1 {
		calls[0].err = c.rdb.Process(ctx, calls[0].command(ctx))
		return
	}
	if rdb, ok := c.rdb.(*redis.Client); ok {
		pipe := rdb.Pipeline()
		for _, call := range calls {
			_ = pipe.Process(ctx, call.command(ctx)) // it only queues
		}
		_, err := pipe.Exec(ctx)
		for _, call := range calls {
			// An error that Redis returns to a new connection is in no command.
			if call.err = call.cmd.Err(); call.err == nil && call.cmd.Val() == nil {
				call.err = err
			}
		}
		return
	}
	// A pipeline of a cluster runs hooks of the caller on goroutines of go-redis, where nothing
	// contains a panic. Each call has a connection of its own instead.
	var group sync.WaitGroup
	for _, call := range calls {
		launch(&group, func() {
			call.err = c.rdb.Process(ctx, call.command(ctx))
		}, func(crash *crash) {
			call.err = fmt.Errorf("%w: %w", errCutOff, crash)
		})
	}
	group.Wait()
}

// finish reads the reply of a call, or completes its error.
func (c caller) finish(ctx context.Context, call *scriptCall) {
	if call.err == nil {
		call.reply, call.err = call.cmd.Slice()
	}
	place := located{call: call.script.name, topic: call.topic}
	switch {
	case call.err != nil:
		call.err = place.at(c.blame(ctx, call.count.judge(call.err), call.words[firstWord:firstWord+call.keys]...))
	case len(call.reply) < 2 || call.reply.status() == "":
		call.err = place.at(errReply)
	}
}
