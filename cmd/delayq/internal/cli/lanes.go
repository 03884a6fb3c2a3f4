package cli

import (
	"context"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

const (
	schemaKey  = "delayq.key/1"
	schemaKeys = "delayq.keys/1"
)

// A keyRecord is a key that has ready jobs.
type keyRecord struct {
	Topic string `json:"topic"`
	jobKey
	Waiting int64  `json:"waiting"` // ready jobs of the key
	Weight  int    `json:"weight"`
	First   string `json:"first"` // ID of the next job to start, with U+FFFD for what is not UTF-8

	FirstBase64 []byte `json:"first_base64,omitempty"` // only if First is not exact
	Paused      bool   `json:"paused,omitempty"`
	HeldUntil   stamp  `json:"held_until,omitzero"` // the end of its hold

	Running      int64         `json:"running,omitempty"`      // if a limit of running jobs is in force for it
	Limits       *limitsRecord `json:"limits,omitempty"`       // of the key itself
	LimitedUntil stamp         `json:"limited_until,omitzero"` // one of its limits is reached
}

// keyRecordOf returns the record of a key.
func keyRecordOf(topic string, k *delayq.KeyInfo) *keyRecord {
	first := refOf(topic, k.First)
	return &keyRecord{
		topic, jobKeyOf(k.Key), k.Waiting, k.Weight, first.ID, first.IDBase64, k.Paused, stamp(k.HeldUntil),
		k.Running, limitsOf(delayq.Limits{Running: k.Limits.Running, Rate: k.Limits.Rate}), stamp(k.LimitedUntil),
	}
}

// keyState writes whether takes pass over a key.
func (a *app) keyState(r *keyRecord) string {
	switch {
	case r.Paused:
		return "paused"
	case !r.HeldUntil.IsZero():
		return "held until " + a.when(time.Time(r.HeldUntil))
	case !r.LimitedUntil.IsZero():
		return "limited"
	}
	return ""
}

// exactFirst returns the ID of the first job itself.
func (r *keyRecord) exactFirst() string {
	ref := jobRef{ID: r.First, IDBase64: r.FirstBase64}
	return ref.exact()
}

// keyText writes a key for people, and nothing for a job without one.
func keyText(k *jobKey) string {
	if key := k.exactKey(); key != "" {
		return idText(key)
	}
	return ""
}

func (a *app) keysCommand() *cobra.Command {
	var after string
	var limit int
	var whole bool
	cmd := &cobra.Command{
		Use:   "keys TOPIC",
		Short: "List the keys that have ready jobs",
		Long: `List the keys of a topic that have ready jobs, with the number of these jobs, the weight
of the key, the job that is the next one of the key to start, and whether the key is held.
Keys are sorted by their length and then by their bytes. A key that is not printable is
shown as base64:…

A list ends after --limit keys. Then stderr has the flag --after for the rest.`,
		Example: `  delayq keys mail:welcome
  delayq jobs mail:welcome --state ready --key tenant-7`,
		Args:              counted(1, 1, "a topic"),
		ValidArgsFunction: a.completeArgs(a.topicNames, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return usage("--limit %d: must be at least 1", limit)
			}
			from, err := idOf(after)
			if err != nil {
				return err
			}
			return a.listKeys(cmd, args[0], from, limit, whole)
		},
	}
	set := cmd.Flags()
	set.SortFlags = false
	set.StringVar(&after, "after", "", "begin after this `key`")
	set.IntVar(&limit, "limit", defaultLimit, "rows of the list")
	set.BoolVar(&whole, "all", false, "no limit")
	return cmd
}

// listKeys writes up to limit keys, or all of them, and what is needed to go on.
func (a *app) listKeys(cmd *cobra.Command, topic, after string, limit int, whole bool) error {
	insp, err := a.inspector()
	if err != nil {
		return err
	}
	p, err := lists(a, view[*keyRecord]{schemaKey, schemaKeys, "keys", []column[*keyRecord]{
		{head: "KEY", cell: func(r *keyRecord) string { return keyText(&r.jobKey) }},
		{head: "READY", cell: func(r *keyRecord) string { return number(r.Waiting) }, right: true},
		{head: "WEIGHT", cell: func(r *keyRecord) string { return strconv.Itoa(r.Weight) }, right: true},
		{head: "FIRST", cell: func(r *keyRecord) string { return idText(r.exactFirst()) }},
		{head: "STATE", cell: a.keyState},
	}, (*keyRecord).exactKey, nil})
	if err != nil {
		return err
	}
	for {
		want := mostPage
		if !whole {
			want = min(mostPage, limit-p.n)
		}
		list, err := insp.Keys(cmd.Context(), topic, after, want)
		if err != nil {
			if flushed := a.flush(); flushed == nil && p.n > 0 {
				a.say("… stopped after %s: --after %s", count(p.n, "key"), idText(after))
			}
			return err
		}
		for n := range list {
			if err := p.row(keyRecordOf(topic, &list[n])); err != nil {
				return err
			}
			after = list[n].Key
		}
		if full := len(list) == want; full && (whole || p.n < limit) {
			continue
		} else if !full {
			after = ""
		}
		break
	}
	next := jobKeyOf(after)
	if err := p.end(struct {
		Next       string `json:"next,omitempty"`
		NextBase64 []byte `json:"next_base64,omitempty"`
	}{next.Key, next.KeyBase64}); err != nil {
		return err
	}
	switch {
	case after != "":
		a.say("… more: --after %s", idText(after))
	case p.n == 0 && a.tabular():
		a.say("no ready jobs with a key")
	}
	return a.flush()
}

func (a *app) keyCommand() *cobra.Command {
	var c keyChange
	cmd := &cobra.Command{
		Use:   "key TOPIC KEY",
		Short: "Show, hold, pause or resume a key of a topic, or set its limits",
		Long: `Show a key of a topic: how many of its jobs are ready, its weight and limits, and whether
it is held. With a flag, change it first. Servers take no jobs of a key that is held or
paused. Its running jobs, other keys and jobs without a key continue. A hold prolongs
another one and never shortens it; --resume ends both a hold and a pause, whoever made
them. Limits that no flag names are kept. Where the key has none, those of delayq limits
hold.

--rate, --burst and --strict are those of delayq limits, for one key. --rate 0 removes the
rate of the key, with its burst.`,
		Example: `  delayq key mail:welcome tenant-7
  delayq key mail:welcome tenant-7 --hold 10m
  delayq key mail:welcome tenant-7 --weight 3 --running 5 --rate 100/1m
  delayq key mail:welcome tenant-7 --burst 1 --strict`,
		Args:              counted(2, 2, "a topic and a key"),
		ValidArgsFunction: a.completeArgs(a.topicNames, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, key := args[0], args[1]
			given, chosen := cmd.Flags().Changed, ""
			c.given = given
			for _, flag := range []string{"hold", "pause", "resume"} {
				if given(flag) && chosen != "" {
					return usage("--%s and --%s: only one of them can be given", chosen, flag)
				}
				if given(flag) {
					chosen = flag
				}
			}
			switch {
			case chosen == "hold" && (c.length < shortestHold || c.length > longestHold):
				return usage("--hold %v: must be from 1ms to 100 years", c.length)
			case given("weight") && (c.weight < 1 || c.weight > mostWeight):
				return usage("--weight %d: must be from 1 to %s", c.weight, number(mostWeight))
			case c.running < 0 || c.running > mostOfKey:
				return usage("--running %d: must be from 1 to %s, or 0 for the limit of the topic", c.running, number(mostOfKey))
			}
			if err := c.rateChange.check(); err != nil {
				return err
			}
			if err := a.changeKey(cmd, topic, key, &c); err != nil {
				return err
			}
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			k, err := insp.Key(cmd.Context(), topic, key)
			if err != nil {
				return err
			}
			r := keyRecordOf(topic, k)
			return object(a, schemaKey, r, r.exactKey(), func(w io.Writer) error { return a.showKey(w, r) })
		},
	}
	set := cmd.Flags()
	set.SortFlags = false
	set.IntVar(&c.weight, "weight", 0, "share of the starts, relative to other keys, from 1 to 1,000")
	set.IntVar(&c.running, "running", 0, "most jobs of the key that run at the same time; 0: the limit of the topic")
	set.Var(&c.rate, "rate", "most starts in a period, such as 100/1m; 0: the rate of the topic")
	set.IntVar(&c.burst, "burst", 0, "most starts at once, from 1 to the starts of the rate")
	set.BoolVar(&c.strict, "strict", false, "the rate is an upper bound for every period; --strict=false ends that")
	set.Var(&duration{&c.length}, "hold", "how long the key waits, from 1ms to 100 years")
	set.BoolVar(&c.pause, "pause", false, "hold the key until it is resumed")
	set.BoolVar(&c.resume, "resume", false, "end the hold and the pause")
	set.BoolVar(&c.create, "create", false, "also for a topic that has no jobs, no schedules and no server yet")
	return cmd
}

// mostWeight is a bound that the library has too.
const mostWeight = 1000

// A keyChange is what the flags ask to change about a key.
type keyChange struct {
	rateChange
	weight, running int
	length          time.Duration
	pause, resume   bool
	create          bool
}

// keyLimitFlags are the flags that set the limits of a key.
var keyLimitFlags = []string{"weight", "running", "rate", "burst", "strict"}

// changeKey makes the changes that the flags ask for, if any.
func (a *app) changeKey(cmd *cobra.Command, topic, key string, c *keyChange) error {
	limits := slices.ContainsFunc(keyLimitFlags, c.given)
	if !limits && c.length == 0 && !c.pause && !c.resume {
		return nil
	}
	if err := a.known(cmd.Context(), []string{topic}, c.create); err != nil {
		return err
	}
	client, err := a.queue()
	if err != nil {
		return err
	}
	ctx := a.act(cmd.Context())
	if limits {
		err = withFlag(a.acted(a.setKeyLimits(ctx, client, topic, key, c)))
	}
	switch {
	case err != nil:
	case c.length > 0:
		err = client.HoldKey(ctx, topic, key, c.length)
	case c.pause:
		err = client.PauseKey(ctx, topic, key)
	case c.resume:
		err = client.ResumeKey(ctx, topic, key)
	}
	return a.acted(err)
}

// setKeyLimits changes the limits of a key. What no flag names is kept.
func (a *app) setKeyLimits(ctx context.Context, client *delayq.Client, topic, key string, c *keyChange) error {
	insp, err := a.inspector()
	if err != nil {
		return err
	}
	k, err := insp.Key(ctx, topic, key)
	if err != nil {
		return err
	}
	l := k.Limits
	if c.given("weight") {
		l.Weight = c.weight
	}
	if c.given("running") {
		l.Running = c.running
	}
	if l.Rate, err = c.rateChange.apply("the key", l.Rate); err != nil {
		return err
	}
	return client.SetKeyLimits(ctx, topic, key, l)
}

// showKey writes a key for people.
func (a *app) showKey(w io.Writer, r *keyRecord) error {
	state := a.keyState(r)
	if state == "" {
		state = "neither held nor paused"
	}
	pairs := []string{"topic", r.Topic, "key", keyText(&r.jobKey), "state", state, "ready", number(r.Waiting), "weight", strconv.Itoa(r.Weight)}
	if r.Limits != nil {
		pairs = append(pairs, "limits", limitsText(r.Limits))
	}
	if r.Running > 0 {
		pairs = append(pairs, "running", number(r.Running))
	}
	if r.Waiting > 0 {
		pairs = append(pairs, "first", idText(r.exactFirst()))
	}
	return a.fields(w, pairs...)
}
