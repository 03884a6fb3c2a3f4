package explain

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// verdict returns the state of the job, its first reason, how far it has come and who waits for it.
func (f *Facts) verdict(reasons []Reason) string {
	if len(reasons) == 0 {
		workers := f.workers()
		if workers == 0 {
			return "Ready: it is next, and the next consumer that asks a gateway for a job gets it" + f.noted() + "."
		}
		return fmt.Sprintf("Ready: it is next, and %s of %s workers are free%s.", grouped(max(0, int64(workers)-f.running())), grouped(int64(workers)), f.noted())
	}
	first := &reasons[0]
	text := first.clause(f.At)
	if first.Code == AllBusy && len(reasons) > 1 && (reasons[1].Code == Behind || reasons[1].Code == KeyBehind) {
		text = first.count() + ", and " + reasons[1].clause(f.At)
	}
	return f.heading() + ": " + text + f.noted() + "."
}

// heading returns the state of the job in a word or two.
func (f *Facts) heading() string {
	switch {
	case f.Job == nil:
		return "Not found"
	case f.overdue():
		return "Due, but not ready"
	case f.is(stateReady):
		return "Ready, but not running"
	case f.lapsed():
		return "No longer running"
	}
	return strings.ToUpper(f.Job.State[:1]) + f.Job.State[1:]
}

// sentence returns a clause as a sentence.
func sentence(clause string) string {
	first, size := utf8.DecodeRuneInString(clause)
	return string(unicode.ToUpper(first)) + clause[size:] + "."
}

// clause returns a reason in words, without a capital and a full stop.
func (r *Reason) clause(now time.Time) string {
	ago := func(t time.Time) string { return span(now.Sub(t)) + " ago" }
	switch r.Code {
	case NotFound:
		text := "no job has this ID; it was never enqueued, has finished, or was cancelled or dropped"
		if r.Action != "" {
			text += fmt.Sprintf("; the last act on record is %q by %q at %s", r.Action, r.By, moment(r.Since))
		}
		return text
	case Cancelled:
		return fmt.Sprintf("%q cancelled it at %s, %s", r.By, moment(r.Since), ago(r.Since))
	case Tomb:
		return fmt.Sprintf("its ID is closed until %s, for %s more, and no job with it is stored", moment(r.Until), span(r.Until.Sub(now)))
	case DueLater:
		return r.due(now, r.stage("it"))
	case BackingOff:
		text := fmt.Sprintf("attempt %d failed", r.Attempt)
		if r.Stages > 0 {
			text = fmt.Sprintf("attempt %d of %s failed", r.Attempt, r.stage(""))
		}
		if r.Error != nil {
			text += fmt.Sprintf(" %s (%s)", ago(r.Since), r.Error.said())
		}
		return text + ", and " + r.due(now, "the next one")
	case Snoozed:
		return fmt.Sprintf("its handler has snoozed it, %s, and %s", often(r.Snoozes), r.due(now, r.stage("it")))
	case Debounced:
		return r.debounced(now)
	case FlowOpen:
		return r.waits(now)
	case Expired:
		if now.Before(r.Since) {
			return "it will be dropped, because it expires at " + moment(r.Since) + ", before it is due"
		}
		return fmt.Sprintf("it will be dropped, because it expired at %s, %s", moment(r.Since), ago(r.Since))
	case LaterRelease:
		return fmt.Sprintf("a later release of delayq has stored it (format version %d); servers of that release run it, and others put it off", r.Version)
	case Orphan:
		if r.Finding == noRecord {
			return "the topic has a place for this ID and no record (Repair removes it)"
		}
		return "the topic has a record of the job and no place for it (Repair makes it ready)"
	case RedisCannotWrite:
		return r.refusal()
	case TopicPaused:
		return r.paused()
	case TopicHeld:
		text := "the topic is held"
		if r.By != "" {
			text += fmt.Sprintf(" by %q", r.By)
		}
		text += fmt.Sprintf(" until %s, in %s", moment(r.Until), span(r.Until.Sub(now)))
		if r.Because != "" {
			text += fmt.Sprintf(" (%s)", brief(r.Because))
		}
		return text
	case TopicLimit:
		return r.reached()
	case TopicRate:
		return fmt.Sprintf("the rate of the topic (%s) allows the next start at %s, in %s", r.Rate, moment(r.Until), span(r.Until.Sub(now)))
	case NoServer:
		return r.noServer(now)
	case Draining:
		if r.Servers == 1 {
			return "the only server of the topic is stopping and takes no more jobs"
		}
		return fmt.Sprintf("all %d servers of the topic are stopping and take no more jobs", r.Servers)
	case ServerSilent:
		return r.silent(now)
	case NotTaken:
		if r.Workers == 0 { // a gateway has workers only for jobs that consumers have asked for
			return fmt.Sprintf(
				"it was due at %s, %s, nothing is in front of it now, and no consumer has taken it: the topic has no workers but the consumers of a gateway, which ask for jobs; the newest heartbeat, of %s, is %s old",
				moment(r.Since), ago(r.Since), r.server(), span(r.LoopAge))
		}
		return fmt.Sprintf(
			"it was due at %s, %s, nothing is in front of it now, and no server has taken it; %s of %s workers seemed free, and the newest heartbeat, of %s, is %s old",
			moment(r.Since), ago(r.Since), grouped(int64(r.Workers-r.Running)), grouped(int64(r.Workers)), r.server(), span(r.LoopAge))
	case NotPromoted:
		text := fmt.Sprintf("it was due at %s, %s, and no server has made it ready", moment(r.Since), ago(r.Since))
		if r.Ahead > 0 {
			text += fmt.Sprintf("; %s due before it", jobsAre(r.Ahead))
		}
		if r.LoopAge > 0 {
			text += "; a server last tried to promote " + span(r.LoopAge) + " ago"
		}
		return text
	case AllBusy:
		text := r.count()
		if r.Job != "" {
			text += fmt.Sprintf(", the longest of them for %[3]s with job %[1]q on %[2]s", r.Job, r.server(), span(r.For))
		}
		return text
	case PoolBusy:
		return fmt.Sprintf("all %s workers of the topic's pool are busy, some of them with other topics", grouped(int64(r.Workers)))
	case KeyPaused:
		return "its key is paused"
	case KeyHeld:
		return fmt.Sprintf("its key is held until %s, in %s", moment(r.Until), span(r.Until.Sub(now)))
	case KeyLimit:
		text := "1 job of its key is"
		if r.Running > 1 {
			text = grouped(int64(r.Running)) + " jobs of its key are"
		}
		if r.Stragglers == r.Running && r.Running == 1 {
			return "its key waits for the handler of a cancelled job, which may still run"
		}
		if r.Running == 0 {
			return "as many jobs of its key are running as the limit of the key allows, which is " + grouped(r.Limit)
		}
		return text + " running, and the limit of the key is " + grouped(r.Limit) + r.stragglers()
	case KeyRate:
		return fmt.Sprintf("the rate of its key (%s) allows the next start at %s, in %s", r.Rate, moment(r.Until), span(r.Until.Sub(now)))
	case KeyBlocked:
		if r.Until.IsZero() {
			return fmt.Sprintf("job %q of its key is dead and halts the key", r.Job)
		}
		return fmt.Sprintf("job %q of its key has failed and comes first; it is due at %s, in %s", r.Job, moment(r.Until), span(r.Until.Sub(now)))
	case Gathering:
		return fmt.Sprintf("it waits until %s, in %s, for other jobs of its batch", moment(r.Until), span(r.Until.Sub(now)))
	case Behind:
		text := jobsAre(r.Ahead) + " in front of it" + r.there()
		if r.More {
			text = "more than " + text
		}
		if r.Keys > 0 {
			turns := grouped(r.Keys) + " keys take turns, with the jobs without a key as one of them"
			if text += ", and " + turns; r.Ahead == 0 {
				text = turns
			}
		}
		if r.Wait > 0 {
			text += fmt.Sprintf("; at %s jobs/s%s it starts in about %s", speed(r.PerSecond), r.ofAll(), span(r.Wait))
		} else if r.PerSecond > 0 {
			text += fmt.Sprintf("; the servers take %s jobs/s", speed(r.PerSecond))
		}
		return text
	case KeyBehind:
		text := jobsAre(r.Ahead) + " in front of it with the same key"
		if r.Keys > 1 {
			text += fmt.Sprintf(", and %s keys take turns", grouped(r.Keys))
		}
		if r.PerSecond > 0 {
			text += fmt.Sprintf("; the servers take %s jobs/s", speed(r.PerSecond))
		}
		return text
	case Running:
		text := fmt.Sprintf("attempt %d is running", r.Attempt)
		if r.Server != "" {
			text += fmt.Sprintf(" on %s since %s, for %s", r.server(), moment(r.Since), span(now.Sub(r.Since)))
		}
		return text + fmt.Sprintf("; its lease lasts until %s unless extended", moment(r.Until))
	case Successor:
		text := "a successor waits, and is due when the run has ended"
		if r.Until.After(now) {
			text = "a successor waits, and " + r.due(now, "it")
		}
		return fmt.Sprintf("%s (%s bytes)", text, grouped(r.Used))
	case LeaseOver:
		text := fmt.Sprintf("the lease of attempt %d", r.Attempt)
		if r.Server != "" {
			text += " on " + r.server()
		}
		return text + fmt.Sprintf(" ended at %s, %s, and no server has taken the job back", moment(r.Since), ago(r.Since))
	case Dead:
		text := fmt.Sprintf("it was buried at %s, %s, after attempt %d", moment(r.Since), ago(r.Since), r.Attempt)
		if r.Error != nil {
			text += " (" + r.Error.said() + ")"
		}
		return text + ", and does not run unless revived"
	case Done:
		return fmt.Sprintf("attempt %d completed it at %s, %s; it is kept until %s", r.Attempt, moment(r.Since), ago(r.Since), moment(r.Until))
	}
	return string(r.Code)
}

// due returns when something is due.
func (r *Reason) due(now time.Time, what string) string {
	return fmt.Sprintf("%s is due at %s, in %s", what, moment(r.Until), span(r.Until.Sub(now)))
}

// stage returns which stage of a plan it is, or otherwise it.
func (r *Reason) stage(it string) string {
	if r.Stages == 0 {
		return it
	}
	return fmt.Sprintf("stage %d of %d", r.Stage, r.Stages)
}

// debounced returns how long a burst of calls puts the job off.
func (r *Reason) debounced(now time.Time) string {
	text := fmt.Sprintf("it waits for %s of silence, and %s", span(r.Wait), r.due(now, "it"))
	switch {
	case r.Latest.IsZero():
		return text
	case r.Latest.After(r.Until):
		return text + ", at the latest at " + moment(r.Latest)
	}
	return "calls put it off no longer, and " + r.due(now, "it")
}

// count returns how many workers are busy.
func (r *Reason) count() string {
	return fmt.Sprintf("%s of %s workers are busy", grouped(int64(r.Running)), grouped(int64(r.Workers)))
}

// server returns which server it is.
func (r *Reason) server() string {
	if r.Host == "" {
		return "server " + r.Server
	}
	return fmt.Sprintf("server %s of host %s", r.Server, r.Host)
}

// refusal returns why Redis refuses writes.
func (r *Reason) refusal() string {
	switch r.Refusal {
	case "OOM":
		return fmt.Sprintf("Redis is full (%s of %s bytes) and refuses new jobs and the heartbeats of servers", grouped(r.Used), grouped(r.Limit))
	case "READONLY":
		return "this Redis is a replica, which refuses writes, and no server is live"
	case "MISCONF":
		return "Redis could not save its data to disk, and refuses writes unless it is configured not to"
	}
	return "too few replicas follow this Redis, so it refuses writes"
}

// paused returns what is known about a pause.
func (r *Reason) paused() string {
	text := "the topic is paused"
	if r.By != "" {
		text += fmt.Sprintf(" by %q", r.By)
	}
	text += " since " + moment(r.Since)
	if r.Until.IsZero() {
		text += " until somebody resumes it"
	} else {
		text += " until " + moment(r.Until)
	}
	if r.Because != "" {
		text += fmt.Sprintf(" (%s)", brief(r.Because))
	}
	return text
}

// noServer returns what is known about servers.
func (r *Reason) noServer(now time.Time) string {
	text := "no live server handles the topic"
	if r.Server != "" {
		text += fmt.Sprintf("; %s was last seen at %s, %s ago", r.server(), moment(r.Since), span(now.Sub(r.Since)))
	}
	switch {
	case r.Others == 1:
		text += "; 1 server of other topics is live"
	case r.Others > 1:
		text += fmt.Sprintf("; %d servers of other topics are live", r.Others)
	}
	return text
}

// silent returns what is known about servers whose heartbeats are missing.
func (r *Reason) silent(now time.Time) string {
	text := "the only server of the topic has"
	switch silent := r.Servers - r.Others; {
	case r.Others > 0:
		text = fmt.Sprintf("%d of %d servers of the topic have", silent, r.Servers)
		if silent == 1 {
			text = fmt.Sprintf("1 of %d servers of the topic has", r.Servers)
		}
	case silent > 1:
		text = fmt.Sprintf("all %d servers of the topic have", silent)
	}
	return fmt.Sprintf("%s sent no heartbeat lately, and may be dead; %s was last seen at %s, %s ago", text, r.server(), moment(r.Since), span(now.Sub(r.Since)))
}

// said returns the text of an error, or its kind if it has none.
func (e *Failure) said() string {
	if e.Message == "" {
		return strings.ReplaceAll(e.Kind, "_", " ")
	}
	return brief(e.Message)
}

// mostText is how many bytes of a text that is not ours a sentence quotes.
const mostText = 200

// brief quotes the beginning of a text.
func brief(text string) string {
	if len(text) <= mostText {
		return strconv.Quote(text)
	}
	end := mostText
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return strconv.Quote(text[:end] + "…")
}

// moment returns an instant, in UTC to the millisecond.
func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") }

// span returns a duration, to the second from ten seconds on.
func span(d time.Duration) string {
	switch d = max(0, d); {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// speed returns a number per second.
func speed(n float64) string {
	if n >= 10 {
		return grouped(int64(n + 0.5))
	}
	return strconv.FormatFloat(n, 'g', 2, 64)
}

// grouped returns a number as in 12,400.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// jobsAre returns a number of jobs and the verb that follows.
func jobsAre(n int64) string {
	if n == 1 {
		return "1 job is"
	}
	return grouped(n) + " jobs are"
}

// often returns how often something has happened.
func often(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return grouped(int64(n)) + " times"
}

// stragglers says how many of the running jobs were cancelled or replaced.
func (r Reason) stragglers() string {
	switch r.Stragglers {
	case 0:
		return ""
	case 1:
		return "; 1 of them is cancelled, and its handler may still run"
	}
	return "; " + grouped(int64(r.Stragglers)) + " of them are cancelled, and their handlers may still run"
}
