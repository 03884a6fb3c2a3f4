package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/values"
)

// A limitsRecord holds the limits of a topic.
type limitsRecord struct {
	Running int         `json:"running,omitempty"` // left out: no limit
	Rate    *rateRecord `json:"rate,omitempty"`

	RunningPerKey int         `json:"running_per_key,omitempty"`
	RatePerKey    *rateRecord `json:"rate_per_key,omitempty"`
	Ordered       bool        `json:"ordered,omitempty"`
	OnDead        string      `json:"on_dead,omitempty"` // only with Ordered
}

// A rateRecord is a number of starts in a period.
type rateRecord struct {
	Starts int     `json:"starts"`
	Period seconds `json:"period"`
	Burst  int     `json:"burst"`
	Strict bool    `json:"strict,omitempty"`
}

// limitsOf returns the record of limits, or nil if there are none.
func limitsOf(l delayq.Limits) *limitsRecord {
	if l == (delayq.Limits{}) {
		return nil
	}
	r := &limitsRecord{l.Running, rateOf(l.Rate), l.RunningPerKey, rateOf(l.RatePerKey), l.Ordered, ""}
	if l.Ordered {
		r.RunningPerKey, r.OnDead = 0, l.OnDead.String() // it is always 1
	}
	return r
}

func rateOf(r delayq.Rate) *rateRecord {
	if r == (delayq.Rate{}) {
		return nil
	}
	return &rateRecord{r.Starts(), seconds(r.Period()), r.MaxBurst(), r.IsStrict()}
}

// limitsText writes limits for people, with the names and the values of the flags that set them.
func limitsText(l *limitsRecord) string {
	if l == nil {
		return "none"
	}
	var parts []string
	if l.Running > 0 {
		parts = append(parts, "running "+number(l.Running))
	}
	if l.Rate != nil {
		parts = append(parts, "rate "+rateText(l.Rate))
	}
	if l.RunningPerKey > 0 {
		parts = append(parts, "running per key "+number(l.RunningPerKey))
	}
	if l.RatePerKey != nil {
		parts = append(parts, "rate per key "+rateText(l.RatePerKey))
	}
	if l.Ordered {
		parts = append(parts, "ordered, on dead "+l.OnDead)
	}
	return strings.Join(parts, ", ")
}

func rateText(r *rateRecord) string {
	text := fmt.Sprintf("%s burst %d", &rate{r.Starts, time.Duration(r.Period)}, r.Burst)
	if r.Strict {
		text += " strict"
	}
	return text
}

// exactSpan is span without rounding. values.ParseSpan reads it.
func exactSpan(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// A rate is the value of a flag: a number of starts in a period, or 0 for none.
type rate struct {
	starts int
	period time.Duration
}

func (v *rate) String() string {
	if *v == (rate{}) {
		return ""
	}
	return strconv.Itoa(v.starts) + "/" + exactSpan(v.period)
}

func (v *rate) Set(text string) error {
	if text == "0" {
		*v = rate{}
		return nil
	}
	n, d, err := values.ParseRate(text)
	if err != nil {
		return fmt.Errorf("%w, and 0 for no limit", err)
	}
	*v = rate{n, d}
	return nil
}

func (v *rate) Type() string { return "starts/period" }

// A rateChange is what the flags ask to change in a rate: that of a topic or of a key.
type rateChange struct {
	rate   rate
	burst  int
	strict bool
	given  func(flag string) bool
}

// A limitsChange is what the flags ask to change in the limits of a topic.
type limitsChange struct {
	rateChange
	running       int
	none          bool
	runningPerKey int
	ratePerKey    rate
	ordered       bool
	onDead        string
}

// limitFlags are the flags that set limits.
var limitFlags = []string{"running", "rate", "burst", "strict", "running-per-key", "rate-per-key", "ordered", "on-dead"}

// asked reports whether anything is to be changed.
func (c *limitsChange) asked() bool {
	for _, flag := range limitFlags {
		if c.given(flag) {
			return true
		}
	}
	return c.none
}

// Bounds of limits, which the library has too.
const (
	mostRunning  = 1_000_000
	mostStarts   = 1_000_000
	longestRate  = 366 * 24 * time.Hour
	longestHold  = 36_500 * 24 * time.Hour
	shortestHold = time.Millisecond
	mostOfKey    = 1000 // running jobs of a key
)

// checkRate returns an error if the value of a flag is out of its range.
func checkRate(flag string, r *rate) error {
	switch {
	case r.starts > mostStarts:
		return usage("--%s %s: must have from 1 to %s starts", flag, r, number(mostStarts))
	case r.period > longestRate || r.period < time.Duration(r.starts)*time.Microsecond:
		return usage("--%s %s: the period must be from 1µs for each start to %s", flag, r, span(longestRate))
	}
	return nil
}

// of returns the rate of the library. Its burst is a tenth of the starts.
func (v *rate) of() delayq.Rate {
	if *v == (rate{}) {
		return delayq.Rate{}
	}
	return delayq.Per(v.starts, v.period)
}

// check returns an error if a flag is out of its range, or if flags contradict each other.
func (c *limitsChange) check() error {
	switch {
	case c.running < 0 || c.running > mostRunning:
		return usage("--running %d: must be from 1 to %s, or 0 for no limit", c.running, number(mostRunning))
	case c.runningPerKey < 0 || c.runningPerKey > mostOfKey:
		return usage("--running-per-key %d: must be from 1 to %s, or 0 for no limit", c.runningPerKey, number(mostOfKey))
	case c.ordered && c.runningPerKey > 1:
		return usage("--ordered and --running-per-key %d: only one job of a key runs at a time", c.runningPerKey)
	case c.given("on-dead") && c.onDead != delayq.ContinueKey.String() && c.onDead != delayq.HaltKey.String():
		return usage("--on-dead %q: must be %s or %s", c.onDead, delayq.ContinueKey, delayq.HaltKey)
	}
	if err := errors.Join(c.rateChange.check(), checkRate("rate-per-key", &c.ratePerKey)); err != nil {
		return err
	}
	for _, flag := range limitFlags {
		if c.none && c.given(flag) {
			return usage("--none and --%s: only one of them can be given", flag)
		}
	}
	return nil
}

// check returns an error if a flag is out of its range, or if flags contradict each other.
func (c *rateChange) check() error {
	if err := checkRate("rate", &c.rate); err != nil {
		return err
	}
	for _, flag := range []string{"burst", "strict"} {
		if c.given("rate") && c.rate == (rate{}) && c.given(flag) {
			return usage("--rate 0 and --%s: only one of them can be given", flag)
		}
	}
	return nil
}

// apply returns limits as they are after the change. What no flag names is kept.
func (c *limitsChange) apply(l delayq.Limits) (delayq.Limits, error) {
	if c.none {
		return delayq.Limits{}, nil
	}
	if c.given("running") {
		l.Running = c.running
	}
	if c.given("running-per-key") {
		l.RunningPerKey = c.runningPerKey
	}
	if c.given("rate-per-key") {
		l.RatePerKey = c.ratePerKey.of()
	}
	if err := c.order(&l); err != nil {
		return l, err
	}
	var err error
	l.Rate, err = c.rateChange.apply("the topic", l.Rate)
	return l, err
}

// apply returns a rate as it is after the change, with errors that say whose it is. What no flag
// names is kept.
func (c *rateChange) apply(whose string, old delayq.Rate) (delayq.Rate, error) {
	starts, period, strict := old.Starts(), old.Period(), old.IsStrict()
	if c.given("rate") {
		starts, period = c.rate.starts, c.rate.period
	}
	if starts == 0 {
		for _, flag := range []string{"burst", "strict"} {
			if c.given(flag) {
				return old, usage("--%s: no rate is set for %s; --rate sets one", flag, whose)
			}
		}
		return delayq.Rate{}, nil
	}
	if c.given("strict") {
		strict = c.strict
	}
	r := delayq.Per(starts, period)
	switch kept := old.MaxBurst(); {
	case c.given("burst"):
		r = r.Burst(c.burst)
	case kept > 0 && kept != delayq.Per(old.Starts(), old.Period()).MaxBurst(): // it was chosen
		r = r.Burst(kept)
	}
	most, kind := starts, ""
	if strict {
		r, kind = r.Strict(), " of a strict rate"
		most = max(1, most-1)
	}
	switch burst := r.MaxBurst(); {
	case c.given("burst") && (c.burst < 1 || c.burst > most):
		return old, usage("--burst %d%s: must be from 1 to %s", c.burst, kind, number(most))
	case burst > most:
		return old, usage("--burst is needed: %s has a burst of %s, and that%s must be from 1 to %s", whose, number(burst), kind, number(most))
	}
	return r, nil
}

// order changes the order of the jobs of a key.
func (c *limitsChange) order(l *delayq.Limits) error {
	if c.given("ordered") {
		if c.ordered != l.Ordered && !c.given("running-per-key") {
			l.RunningPerKey = 0
		}
		if l.Ordered = c.ordered; !c.ordered {
			l.OnDead = delayq.ContinueKey
		}
	}
	if l.Ordered && l.RunningPerKey > 1 {
		return usage("--running-per-key %d: the jobs of a key run in order, one at a time", l.RunningPerKey)
	}
	if c.given("on-dead") {
		if l.OnDead = delayq.ContinueKey; c.onDead == delayq.HaltKey.String() {
			l.OnDead = delayq.HaltKey
		}
		if !l.Ordered {
			return usage("--on-dead: the jobs of a key run in no order; --ordered sets one")
		}
	}
	return nil
}

func (a *app) limitsCommand() *cobra.Command {
	var c limitsChange
	var create bool
	cmd := &cobra.Command{
		Use:   "limits TOPIC",
		Short: "Show or set the limits of a topic",
		Long: `Show the limits of a topic, when its rate allows the next start, and whether it is held.
With a flag, set limits, which all servers obey at once. What no flag names is kept.

A rate such as 100/1m allows 100 starts in a minute. After a pause, as many jobs as
--burst says start at once; without it that is a tenth of the starts, at least 1. With
--strict no minute has more than 100 starts, and the mean rate is lower by the burst.
--burst and --strict are about --rate. The burst of --rate-per-key is a tenth.

With --ordered the jobs of each key run in the order of their due times, one at a time.
A job that fails stays the first one. With --on-dead halt, the key of a dead job waits
until somebody has revived or cancelled it.`,
		Example: `  delayq limits invoice:send
  delayq limits invoice:send --running 5 --rate 100/1m
  delayq limits account --ordered --on-dead halt
  delayq limits invoice:send --none`,
		Args:              counted(1, 1, "a topic"),
		ValidArgsFunction: a.completeArgs(a.topicNames, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.given = cmd.Flags().Changed
			if err := c.check(); err != nil {
				return err
			}
			if c.asked() {
				if err := a.known(cmd.Context(), args, create); err != nil {
					return err
				}
				if err := a.setLimits(cmd, args[0], &c); err != nil {
					return err
				}
			}
			list, err := a.stats(cmd.Context(), args)
			if err != nil {
				return err
			}
			r := list[0]
			r.Counters = nil
			return object(a, schemaTopic, r, r.Topic, func(w io.Writer) error { return a.showLimits(w, r) })
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().IntVar(&c.running, "running", 0, "most jobs that run at the same time, over all servers; 0: no limit")
	cmd.Flags().Var(&c.rate, "rate", "most starts in a period, such as 100/1m; 0: no limit")
	cmd.Flags().IntVar(&c.burst, "burst", 0, "most starts at once, from 1 to the starts of the rate")
	cmd.Flags().BoolVar(&c.strict, "strict", false, "the rate is an upper bound for every period; --strict=false ends that")
	cmd.Flags().IntVar(&c.runningPerKey, "running-per-key", 0, "most jobs of each key that run at the same time; 0: no limit")
	cmd.Flags().Var(&c.ratePerKey, "rate-per-key", "most starts of each key in a period; 0: no limit")
	cmd.Flags().BoolVar(&c.ordered, "ordered", false, "the jobs of each key run one after the other; --ordered=false ends that")
	cmd.Flags().StringVar(&c.onDead, "on-dead", "continue", "what a dead job means for its key with --ordered: continue or halt")
	cmd.Flags().BoolVar(&c.none, "none", false, "remove all limits")
	cmd.Flags().BoolVar(&create, "create", false, "also for a topic that has no jobs, no schedules and no server yet")
	return cmd
}

// setLimits changes the limits of a topic.
func (a *app) setLimits(cmd *cobra.Command, topic string, c *limitsChange) error {
	var limits delayq.Limits
	if !c.none {
		insp, err := a.inspector()
		if err != nil {
			return err
		}
		list, err := insp.Stats(cmd.Context(), topic)
		if err != nil {
			return err
		}
		limits = list[0].Limits
	}
	limits, err := c.apply(limits)
	if err != nil {
		return err
	}
	client, err := a.queue()
	if err != nil {
		return err
	}
	return withFlag(a.acted(client.SetLimits(a.act(cmd.Context()), topic, limits)))
}

// showLimits writes the limits of a topic for people, with what they restrain.
func (a *app) showLimits(w io.Writer, r *topicRecord) error {
	pairs := []string{"topic", r.Topic, "state", a.stateText(r), "limits", limitsText(r.Limits), "running", number(r.Running), "ready", number(r.Ready)}
	if r.Limits != nil && r.Limits.Rate != nil {
		next := "now"
		if !r.NextStart.IsZero() {
			next = a.when(time.Time(r.NextStart))
		}
		pairs = append(pairs, "next start", next)
	}
	return a.fields(w, pairs...)
}
