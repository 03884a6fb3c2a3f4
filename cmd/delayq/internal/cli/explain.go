package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

const schemaExplanation = "delayq.explanation/1"

// An explanationRecord says why a job is not running.
type explanationRecord struct {
	jobRef
	At      stamp          `json:"at,omitzero"`
	Verdict string         `json:"verdict"`
	Job     *jobRecord     `json:"job,omitempty"`
	Reasons []reasonRecord `json:"reasons"`
	// What holds in the runs of the job, if it is there and not done.
	Settings []settingRecord `json:"settings,omitempty"`
	Waiters  int             `json:"waiters,omitempty"` // clients that wait for the job
	// Partition has the job. It is left out if the topic itself does.
	Partition *partitionRef `json:"partition,omitempty"`
	left      []int         // the retries that are left by these settings
}

// A settingRecord is a value that holds in the runs of a job, and who has set it.
type settingRecord struct {
	Name  string               `json:"name"`
	Value string               `json:"value"`
	By    delayq.SettingSource `json:"by"`
}

// explanationOf returns the record of an explanation.
func explanationOf(topic, id string, found *delayq.Explanation) *explanationRecord {
	r := &explanationRecord{jobRef: refOf(topic, id), At: stamp(found.At), Verdict: found.Verdict, Reasons: []reasonRecord{}, Waiters: found.Waiters, Partition: partitionOf(found.Partition)}
	if found.Job != nil {
		r.Job = jobOf(found.Job, false)
	}
	for i := range found.Reasons {
		r.Reasons = append(r.Reasons, reasonOf(&found.Reasons[i]))
	}
	for _, s := range found.Settings {
		r.Settings = append(r.Settings, settingRecord(s))
	}
	if r.left = library.RetriesLeft(found); len(r.left) > 0 {
		r.Job.RetriesLeft = r.left[0]
	}
	return r
}

// A reasonRecord is one reason. Each code has its own fields.
type reasonRecord struct {
	Code       delayq.ReasonCode  `json:"code"`
	Text       string             `json:"text"`
	Since      stamp              `json:"since,omitzero"`
	Until      stamp              `json:"until,omitzero"`
	Latest     stamp              `json:"latest,omitzero"`
	By         string             `json:"by,omitempty"`
	Because    string             `json:"because,omitempty"`
	Action     string             `json:"action,omitempty"`
	Attempt    int                `json:"attempt,omitempty"`
	Snoozes    int                `json:"snoozes,omitempty"`
	Stage      int                `json:"stage,omitempty"` // of a plan, from 1
	Stages     int                `json:"stages,omitempty"`
	Error      *attemptRecord     `json:"error,omitempty"`
	Server     string             `json:"server,omitempty"`
	Host       string             `json:"host,omitempty"`
	Servers    int                `json:"servers,omitempty"`
	Others     int                `json:"others,omitempty"`
	Workers    int                `json:"workers,omitempty"`
	Running    int                `json:"running,omitempty"`
	Stragglers int                `json:"stragglers,omitempty"`
	Longest    *runningRecord     `json:"longest,omitempty"`
	Ahead      int64              `json:"ahead,omitempty"`
	Keys       int64              `json:"keys,omitempty"` // that take turns
	More       bool               `json:"more,omitempty"` // there are more ahead
	PerSecond  float64            `json:"per_second,omitempty"`
	Wait       seconds            `json:"wait,omitempty"`
	LoopAge    seconds            `json:"loop_age,omitempty"`
	Missing    string             `json:"missing,omitempty"` // steps of a flow
	Finding    delayq.FindingKind `json:"finding,omitempty"`
	Refusal    string             `json:"refusal,omitempty"`
	Used       int64              `json:"used,omitempty"`
	Limit      int64              `json:"limit,omitempty"`
	Rate       *rateRecord        `json:"rate,omitempty"`
	Version    int                `json:"version,omitempty"` // of the job's record
	// InPartition says that ahead, keys, running and limit are those of the partition of the job.
	// Then Whole is the limit of the topic, of which limit is the share.
	InPartition bool  `json:"in_partition,omitempty"`
	Whole       int64 `json:"whole,omitempty"`
}

func reasonOf(r *delayq.Reason) reasonRecord {
	out := reasonRecord{
		Code: r.Code, Text: r.Text, Since: stamp(r.Since), Until: stamp(r.Until), Latest: stamp(r.Latest), By: r.By, Because: r.Because, Action: r.Action,
		Attempt: r.Attempt, Snoozes: r.Snoozes, Stage: r.Stage, Stages: r.Stages, Server: r.Server, Host: r.Host, Servers: r.Servers, Others: r.Others,
		Workers: r.Workers, Running: r.Running, Stragglers: r.Stragglers, Ahead: r.Ahead, Keys: r.Keys, More: r.More, PerSecond: r.PerSecond, Wait: seconds(r.Wait),
		LoopAge: seconds(r.LoopAge), Missing: r.Missing, Finding: r.Finding, Refusal: r.Refusal, Used: r.Used, Limit: r.Limit, Rate: rateOf(r.Rate), Version: r.Version,
		InPartition: r.Partition, Whole: r.Whole,
	}
	if r.Error != nil {
		e := attemptOf(r.Error)
		out.Error = &e
	}
	if r.Job != "" {
		ref := refOf("", r.Job)
		out.Longest = &runningRecord{ref.ID, ref.IDBase64, seconds(r.For)}
	}
	return out
}

func (a *app) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain TOPIC ID",
		Short: "Say why a job is not running",
		Long: `Say why a job is not running: a verdict in one sentence, and every reason that holds,
the decisive one first. If there is no such job, the exit code is 3.`,
		Example:           "  delayq explain mail:welcome u-77812",
		Args:              counted(2, 2, "a topic and an ID"),
		ValidArgsFunction: a.completeArgs(a.topicNames, a.jobIDs(everyState...), nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := args[1]
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			found, err := insp.Explain(cmd.Context(), args[0], id)
			if err != nil {
				return err
			}
			a.setClock(found.At)
			r := explanationOf(args[0], id, found)
			if err := object(a, schemaExplanation, r, id, func(w io.Writer) error { return a.showExplanation(w, r) }); err != nil {
				return err
			}
			if found.Job == nil {
				return &exitCode{code: exitNotFound}
			}
			return nil
		},
	}
}

// showExplanation writes an explanation for people.
func (a *app) showExplanation(w io.Writer, r *explanationRecord) error {
	if _, err := fmt.Fprintln(w, safe(r.Verdict, false)); err != nil {
		return err
	}
	var pairs []string
	for _, reason := range r.Reasons {
		pairs = append(pairs, "  "+string(reason.Code), reason.Text)
	}
	if j := r.Job; j != nil {
		pairs = append(pairs, "  due", a.when(time.Time(j.Due)), "  enqueued", a.when(time.Time(j.Enqueued)), "  attempt", attemptText(r),
			"  progress", j.progressText(), "  steps", j.stepsText(), "  waiters", waitersText(r.Waiters))
	}
	for _, one := range r.Settings {
		pairs = append(pairs, "  "+one.Name, one.Value+", "+string(one.By))
	}
	return a.fields(w, pairs...)
}

// attemptText writes which attempt a job is at, and how many retries it has left.
func attemptText(r *explanationRecord) string {
	var left []string
	for _, n := range r.left {
		left = append(left, retries(n))
	}
	if len(left) == 0 {
		return strconv.Itoa(r.Job.Attempt)
	}
	return fmt.Sprintf("%d, retries left: %s", r.Job.Attempt, strings.Join(left, " or "))
}
