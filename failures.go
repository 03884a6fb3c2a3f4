package delayq

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/delayq/delayq/internal/script"
)

// Failures are the jobs with errors of a topic, in groups.
type Failures struct {
	Groups   []FailureGroup // the largest first
	Examined int            // how many jobs were looked at
	Total    int64          // how many jobs are in that state, with or without errors
}

// A FailureGroup is a set of jobs whose last errors differ only in details.
//
// Errors are in one group if they have the same type and the same message, after everything that
// changes from job to job is replaced by #: the ID of the job, numbers and durations, hexadecimal
// numbers, UUIDs, IP addresses, and texts in quotation marks.
type FailureGroup struct {
	Key         string // for Query.Failure: 12 hexadecimal digits, the same in every process
	Sample      string // the message of one of the newest errors, unchanged
	Count       int64  // number of jobs that were found
	First, Last time.Time
	IDs         []string // of up to five jobs
}

const (
	failuresBudget = 2_000
	failureIDs     = 5
	failureKeyLen  = 12
)

// Failures groups the jobs of a topic in one state by their last error: dead jobs, or jobs that
// were or will be retried, which are scheduled, ready or running. It looks at up to budget jobs. It
// begins with the dead jobs that were buried last, with the scheduled and ready jobs that run next,
// and with the first running jobs by ID. A budget of 0 is 2,000; the most is 50,000.
// [Failures.Examined] and [Failures.Total] tell whether that was all. [Inspector.Jobs] lists the
// jobs of a group, with Query.Failure.
//
// Done jobs have no errors: for [StateDone] Failures returns [ErrInvalid].
//
// Cost: as [Inspector.Jobs] with a filter, for that many jobs.
func (i *Inspector) Failures(ctx context.Context, topic string, s State, budget int) (*Failures, error) {
	if budget == 0 {
		budget = failuresBudget
	}
	q := Query{Topic: topic, State: s, Latest: s == StateDead, Limit: maxLimit, Budget: budget}
	var w *walk
	var err error
	if s == StateDone {
		err = fmt.Errorf("%w: state %q: must be scheduled, ready, running or dead; done jobs have no errors", ErrInvalid, s)
	}
	if err == nil {
		w, err = i.newWalk(ctx, q)
	}
	groups := make(map[string]*FailureGroup)
	for err == nil && !w.ended && w.page.Examined < budget {
		if err = w.step(ctx); err == nil {
			group(groups, w.page.Jobs)
			w.page.Jobs = nil
		}
	}
	if err != nil {
		return nil, script.Place{Call: "failures", Topic: topic}.At(err)
	}
	f := &Failures{Examined: w.page.Examined, Total: w.page.Total}
	for _, g := range groups {
		f.Groups = append(f.Groups, *g)
	}
	slices.SortFunc(f.Groups, func(a, b FailureGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), b.Last.Compare(a.Last), cmp.Compare(a.Key, b.Key))
	})
	return f, nil
}

// group adds jobs to the groups of their last errors.
func group(groups map[string]*FailureGroup, jobs []*JobInfo) {
	for _, info := range jobs {
		if len(info.Errors) == 0 {
			continue
		}
		last := &info.Errors[len(info.Errors)-1]
		key := failureKey(last, info.ID)
		g := groups[key]
		if g == nil {
			g = &FailureGroup{Key: key, First: last.At, Last: last.At, Sample: last.Message}
			groups[key] = g
		}
		g.Count++
		if len(g.IDs) < failureIDs {
			g.IDs = append(g.IDs, info.ID)
		}
		if last.At.Before(g.First) {
			g.First = last.At
		}
		if last.At.After(g.Last) {
			g.Last, g.Sample = last.At, last.Message
		}
	}
}

// failureKey returns the key of the group of an error of a job.
func failureKey(e *AttemptError, id string) string {
	sum := sha256.Sum256([]byte(string(e.Kind) + "\n" + e.Type + "\n" + fold(e.Message, id)))
	return hex.EncodeToString(sum[:])[:failureKeyLen]
}

var failureKeys = regexp.MustCompile(fmt.Sprintf(`^[0-9a-f]{%d}$`, failureKeyLen))

func isFailureKey(key string) bool { return failureKeys.MatchString(key) }

// What changes from one error to the next, in the order in which it is replaced.
var folded = []struct {
	text  *regexp.Regexp
	digit bool // only if there is a digit in it
}{
	{text: regexp.MustCompile(`"(?:[^"\\]|\\.)*"|` + "`[^`]*`" + `|“[^”]*”|«[^»]*»`)},
	{text: regexp.MustCompile(`(?i)\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)},                   // UUIDs
	{text: regexp.MustCompile(`(?i)\[[0-9a-f.]*:[0-9a-f:.]*(?:%\w+)?\](?::\d+)?`)},                      // [::1]:80
	{text: regexp.MustCompile(`(?i)(?:\b[0-9a-f]{1,4}|:)(?::[0-9a-f]{0,4}){2,7}\b|::1\b`), digit: true}, // IPv6
	{text: regexp.MustCompile(`\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b`)},                                  // IPv4, with a port
	{text: regexp.MustCompile(`\b(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+\b`)},                           // durations
	{text: regexp.MustCompile(`\b(?:0[xX][0-9a-fA-F]+|[0-9a-fA-F]{4,})\b`), digit: true},
	{text: regexp.MustCompile(`\d+(?:[.,:]\d+)*`)},
}

// single matches a text in single quotation marks. An apostrophe within a word is none.
var single = regexp.MustCompile(`(^|[^\pL\pN_])'[^']*'`)

// foldedID is the least length of an ID that is looked for in a message. A shorter one is too often
// a word of its own.
const foldedID = 3

// fold returns a message with # in place of what changes from job to job.
func fold(text, id string) string {
	if len(id) >= foldedID {
		text = foldWord(text, id)
	}
	text = single.ReplaceAllString(text, "$1#")
	for _, one := range folded {
		text = one.text.ReplaceAllStringFunc(text, func(match string) string {
			if one.digit && !strings.ContainsAny(match, "0123456789") {
				return match
			}
			return "#"
		})
	}
	return text
}

// foldWord replaces a word where it is not part of a longer one.
func foldWord(text, word string) string {
	var out strings.Builder
	before := utf8.RuneError // the character in front of text
	for {
		at := strings.Index(text, word)
		if at < 0 {
			break
		}
		if at > 0 {
			before, _ = utf8.DecodeLastRuneInString(text[:at])
		}
		after, _ := utf8.DecodeRuneInString(text[at+len(word):])
		out.WriteString(text[:at])
		if inWord(before) || inWord(after) {
			out.WriteString(word)
		} else {
			out.WriteByte('#')
		}
		before, _ = utf8.DecodeLastRuneInString(word)
		text = text[at+len(word):]
	}
	out.WriteString(text)
	return out.String()
}

func inWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }
