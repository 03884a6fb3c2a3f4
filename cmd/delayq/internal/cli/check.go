package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// The exit codes of the command check, which are those of Nagios plugins.
const (
	nagiosOK       = 0
	nagiosWarning  = 1
	nagiosCritical = 2
	nagiosUnknown  = 3
)

var nagiosWords = []string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}

const schemaCheck = "delayq.check/1"

// A checkRecord is the outcome of check.
type checkRecord struct {
	Status   string   `json:"status"` // ok, warning, critical or unknown
	Topics   int      `json:"topics"`
	Overdue  int64    `json:"overdue"`
	Oldest   seconds  `json:"oldest"` // age of the oldest overdue job
	Dead     int64    `json:"dead"`
	Servers  int      `json:"servers"` // the fewest of a topic
	Problems []string `json:"problems,omitempty"`
}

func (a *app) checkCommand() *cobra.Command {
	lateness := 5 * time.Second
	var dead int64
	var need bool
	cmd := &cobra.Command{
		Use:   checkName + " [TOPIC…]",
		Short: "Check topics for a monitoring system, with the exit codes of Nagios",
		Long: `Check topics and write one line. The exit codes are those of Nagios:

  0  all is well
  1  warning: more dead jobs than --max-dead, or a paused topic is late
  2  critical: jobs are later than --max-lateness, a topic has jobs to run and no
     server, --need-server and no server, or Redis is not reachable
  3  unknown: wrong usage, or Redis refuses the command`,
		Example:           "  delayq check --max-lateness 30s --max-dead 100 mail:welcome",
		Args:              counted(0, -1, "topics"),
		ValidArgsFunction: a.completeArgs(a.topicNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case lateness <= 0:
				return usage("--max-lateness %v: must be above 0", lateness)
			case cmd.Flags().Changed("max-dead") && dead < 0:
				return usage("--max-dead %d: must be at least 0", dead)
			}
			list, err := a.stats(cmd.Context(), args)
			if err != nil {
				return a.checkFailed(err)
			}
			most := int64(-1)
			if cmd.Flags().Changed("max-dead") {
				most = dead
			}
			code, r := judge(list, lateness, most, need)
			if err := a.showCheck(code, r); err != nil {
				return err
			}
			if code == nagiosOK {
				return nil
			}
			return &exitCode{code: code}
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().Var(&duration{&lateness}, "max-lateness", "critical if a due job has waited for longer")
	cmd.Flags().Int64Var(&dead, "max-dead", 0, "warn if a topic has more dead jobs; without it dead jobs do not matter")
	cmd.Flags().Lookup("max-dead").DefValue = ""
	cmd.Flags().BoolVar(&need, "need-server", false, "critical if a topic has no live server, even without due jobs")
	return cmd
}

const checkName = "check"

// asNagios gives an error of check that is not a result the exit code for that.
func asNagios(err error) error {
	if err == nil || err.Error() == "" {
		return err
	}
	return &exitCode{nagiosUnknown, errorText(err)}
}

// judge compares topics with the limits. dead below 0 is none.
func judge(list []*topicRecord, lateness time.Duration, dead int64, need bool) (code int, r *checkRecord) {
	r = &checkRecord{Topics: len(list)}
	problem := func(severity int, format string, args ...any) {
		code = max(code, severity)
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	}
	for i, t := range list {
		r.Overdue += t.Overdue
		r.Oldest = max(r.Oldest, t.OverdueAge)
		r.Dead += t.Dead
		if i == 0 || t.Servers < r.Servers {
			r.Servers = t.Servers
		}
		late := time.Duration(t.OverdueAge) > lateness
		switch {
		case t.State == topicPaused && late:
			problem(nagiosWarning, "%s is paused and %s late", t.Topic, span(time.Duration(t.OverdueAge)))
		case t.State == topicNoServer, need && t.Servers == 0:
			problem(nagiosCritical, "%s has no server", t.Topic)
		case t.State == topicHeld && late:
			problem(nagiosCritical, "%s is held and %s late", t.Topic, span(time.Duration(t.OverdueAge)))
		case late:
			problem(nagiosCritical, "%s is %s late", t.Topic, span(time.Duration(t.OverdueAge)))
		}
		if dead >= 0 && t.Dead > dead {
			problem(nagiosWarning, "%s has %s", t.Topic, count(t.Dead, "dead job"))
		}
	}
	r.Status = strings.ToLower(nagiosWords[code])
	return code, r
}

func (a *app) showCheck(code int, r *checkRecord) error {
	return object(a, schemaCheck, r, "", func(w io.Writer) error {
		text := count(r.Topics, "topic")
		if len(r.Problems) > 0 {
			text = safe(strings.ReplaceAll(strings.Join(r.Problems, ", "), "|", "/"), false) // | starts the figures
		}
		_, err := fmt.Fprintf(w, "DELAYQ %s: %s | overdue=%d oldest=%ss dead=%d servers=%d\n",
			nagiosWords[code], text, r.Overdue, decimals(time.Duration(r.Oldest)), r.Dead, r.Servers)
		return err
	})
}

// decimals writes seconds with three decimals.
func decimals(d time.Duration) string {
	return fmt.Sprintf("%d.%03d", d.Milliseconds()/1000, d.Milliseconds()%1000)
}

// checkFailed writes why there is nothing to judge.
func (a *app) checkFailed(err error) error {
	code := nagiosUnknown
	if unreachable(err) {
		code = nagiosCritical
	}
	r := &checkRecord{Status: strings.ToLower(nagiosWords[code]), Problems: []string{errorText(err)}}
	if err := object(a, schemaCheck, r, "", func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "DELAYQ %s: %s\n", nagiosWords[code], safe(errorText(err), false))
		return err
	}); err != nil {
		return err
	}
	return &exitCode{code: code}
}
