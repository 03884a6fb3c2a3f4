package hand

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// TryEnqueue, TryCancel, TryReschedule and TryRevive make the calls of a Client. A job is an ID and
// its due time as the script reads it.
func (h *Hand) TryEnqueue(replace bool, jobs ...[2]string) (script.Reply, error) {
	var args []any
	for _, job := range jobs {
		head, tail := h.Record(job[1], 0)
		args = append(args, job[0], head, tail, job[1])
	}
	return h.TrySend(replace, args)
}

// TrySend is one call of the enqueue script, or of the replace script if any job says what it
// replaces. With replace all give way.
func (h *Hand) TrySend(replace bool, jobs []any) (script.Reply, error) {
	which := script.Enqueue
	jobs = slices.Clone(jobs)
	for i := 3; i < len(jobs); i += 4 {
		if replace {
			jobs[i] = string(commit.ReplaceAny) + jobs[i].(string)
		}
		switch keyed := record.HasKey(jobs[i-2].(string)); {
		case strings.ContainsAny(jobs[i].(string), "rwdlb"):
			which = script.Replace
		case keyed && which == script.Enqueue:
			which = script.EnqueueKeyed
		}
	}
	words := []any{h.Series.Next(), script.MaxTick.Milliseconds(), script.ControlChannel(h.Prefix()), h.Keys.Topic}
	return h.Run(which, append(words, jobs...)...)
}

// TryEnqueueLone makes the calls of a Client about one plain job: of the script for that, and of
// the enqueue script if that does not know what to do.
func (h *Hand) TryEnqueueLone(id, when string) (script.Reply, error) {
	head, tail := h.Record(when, 0)
	return h.TrySendLone(id, head, tail, when)
}

// TrySendLone is TryEnqueueLone with a record.
func (h *Hand) TrySendLone(id, head, tail, when string) (script.Reply, error) {
	now := h.RDB.Time(context.Background()).Val().UnixMilli()
	number := h.Series.Next()
	which := script.EnqueueNow
	lone := []any{number, id, record.Join(head, now, tail), now}
	due, err := strconv.ParseInt(when, 10, 64)
	require.NoError(h.T, err)
	if when[0] == '+' {
		due += now
	}
	if due > now {
		which, lone = script.EnqueueLater, append(lone, due)
	}
	words := []any{number, script.MaxTick.Milliseconds(), script.ControlChannel(h.Prefix()), h.Keys.Topic}
	both := func() (script.Reply, error) {
		r, err := h.Run(which, lone...)
		switch {
		case err != nil:
			return nil, err
		case r.Status() != script.StatusKnown:
			return script.Reply{r.Status(), r.Now(), r.Text(2), r.Text(3), r.Text(4)}, nil
		}
		return h.Run(script.Enqueue, append(words, id, head, tail, when)...)
	}
	r, err := both()
	h.Last = both
	return r, err
}

// nonces are those of the records that Hands have made.
var nonces atomic.Uint64

// Record makes the head and the tail of a record that no other call makes.
func (h *Hand) Record(when string, retention int64) (head, tail string) {
	n := nonces.Add(1)
	var nonce record.Nonce
	binary.BigEndian.PutUint64(nonce[:], n)
	o := record.Options{Retry: record.NotSet}
	o.Retention = retention
	when, _, _ = strings.Cut(when, "!")
	due, till, _ := strings.Cut(strings.TrimLeft(when, "rwdlb"), " ")
	due, _, _ = strings.Cut(due, "/")
	for text, field := range map[string][2]*int64{due: {&o.DueAt, &o.DueIn}, till: {&o.ExpireAt, &o.ExpireIn}} {
		if text == "" {
			continue
		}
		ms, err := strconv.ParseInt(text, 10, 64)
		require.NoError(h.T, err)
		if text[0] == '+' {
			*field[1] = ms
		} else {
			*field[0] = ms
		}
	}
	head, tail, err := record.Encode(nonce, &o, []byte(fmt.Sprintf("payload %012d", n)))
	require.NoError(h.T, err)
	return head, tail
}

// When is a delay as enqueue.lua reads it, rounded up to milliseconds.
func When(d time.Duration) string {
	return "+" + strconv.FormatInt((d+time.Millisecond-1).Milliseconds(), 10)
}

// Renewal is what a handler's Again asks for.
func (h *Hand) Renewal(when string, retention int64) *settle.Renewal {
	n := &settle.Renewal{When: when}
	n.Head, n.Tail = h.Record(when, retention)
	return n
}

func (h *Hand) TryCancel(ids ...string) (script.Reply, error) {
	args := []any{h.Series.Next(), script.ControlChannel(h.Prefix()), h.Keys.Topic}
	for _, id := range ids {
		args = append(args, id, "")
	}
	return h.Run(script.Cancel, args...)
}

// TryCancelKnown is tryCancel by a caller that knows how the job was.
func (h *Hand) TryCancelKnown(id, known string) (script.Reply, error) {
	return h.Run(script.Cancel, h.Series.Next(), script.ControlChannel(h.Prefix()), h.Keys.Topic, id, known)
}

func (h *Hand) TryReschedule(id, due string) (script.Reply, error) {
	r, err := h.TryRescheduleKnown(id, due, record.Job{})
	if r.Text(2) == string(script.LetterExpires) {
		known, err := record.DecodeMeta(r.List(3).Text(0))
		require.NoError(h.T, err)
		return h.TryRescheduleKnown(id, due, known)
	}
	return r, err
}

// TryRescheduleKnown is tryReschedule by a caller that knows when the job expires.
func (h *Hand) TryRescheduleKnown(id, due string, known record.Job) (script.Reply, error) {
	return h.Run(script.Reschedule, h.Series.Next(), script.MaxTick.Milliseconds(), script.ControlChannel(h.Prefix()), h.Keys.Topic, id, due, known.Nonce, known.Expires(), "")
}

func (h *Hand) TryRevive(id string) (script.Reply, error) {
	return h.TryReviveAt(id, "+0")
}

// TryReviveAt is tryRevive with a due time.
func (h *Hand) TryReviveAt(id, due string) (script.Reply, error) {
	return h.Run(script.Revive, h.Series.Next(), script.MaxTick.Milliseconds(), script.ControlChannel(h.Prefix()), h.Keys.Topic, id, due, "")
}

// TryBury is one call of the bury_waiting script.
func (h *Hand) TryBury(id string) (script.Reply, error) {
	return h.Run(script.BuryWaiting, h.Series.Next(), script.ControlChannel(h.Prefix()), h.Keys.Topic, id, "why", "")
}

// LetterOf gives the letter of a state in a reply.
func LetterOf(state string) string {
	letter, known := map[string]rune{
		"scheduled": script.LetterScheduled, "ready": script.LetterReady, "running": script.LetterRunning,
		"dead": script.LetterDead, "done": script.LetterDone, "none": script.LetterGone, "beyond": script.LetterBeyond,
	}[state]
	if !known {
		return ""
	}
	return string(letter)
}

// TryPause is one call of the pause script.
func (h *Hand) TryPause(verb, by string, period time.Duration) (script.Reply, error) {
	return h.Run(script.Pause, h.Series.Next(), verb, by, period.Milliseconds(), "why", MostPauses, script.ControlChannel(h.Prefix()), h.Keys.Topic)
}

// TryLimits is one call of the limits script. flow is what a client has made of the limits.
func (h *Hand) TryLimits(flow string) (script.Reply, error) {
	return h.TryShare(flow, "", "set")
}

// TryHold is one call of the hold script; a period of 0 ends the hold.
func (h *Hand) TryHold(period time.Duration) (script.Reply, error) {
	return h.Run(script.Hold, h.Series.Next(), period.Milliseconds(), "me", "why", script.ControlChannel(h.Prefix()), h.Keys.Topic)
}

// TryPriority gives a job another head start, in ms.
func (h *Hand) TryPriority(id string, head int64) (script.Reply, error) {
	return h.Run(script.SetPriority, h.Series.Next(), id, head+1<<31, script.ControlChannel(h.Prefix()), h.Keys.Topic, "")
}

// tryKeyHold holds a key for some ms: -1 pauses it, and 0 resumes it.
func (h *Hand) TryKeyHold(key string, ms int64, most int) (script.Reply, error) {
	return h.Run(script.KeyHold, h.Series.Next(), key, ms, most, script.ControlChannel(h.Prefix()), h.Keys.Topic)
}
