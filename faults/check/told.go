package check

import (
	"time"

	"github.com/delayq/delayq/faults/rig"
)

// latest is how long after the end of a job those who wait for it learn of it at the latest. A
// little of it is for a machine that is busy.
const latest = 12 * time.Second

// told judges what somebody was told who waited for a job.
func (c *checker) told(j *job, e rig.Event) {
	var last *run
	for _, r := range j.runs {
		if r.settled != nil && (r.settled.Result == "acked" || r.settled.Result == "buried") {
			last = r
		}
	}
	late := func(ms int64) bool {
		from := e.Mono - ms*int64(time.Millisecond)
		return ms > latest.Milliseconds() && !c.broken(from, e.Mono, "")
	}
	switch e.Result {
	case rig.ToldDone:
		c.Told++
		switch {
		case last != nil && last.settled.Result == "buried":
			c.bad("I29", j, "is dead, and who waited was told that it is done")
		case len(j.runs) > 0 && e.Sum != j.runs[len(j.runs)-1].Nonce:
			c.bad("I29", j, "has the nonce %s, and who waited was told the result of %s", j.runs[len(j.runs)-1].Nonce, e.Sum)
		}
	case "dead":
		c.Told++
		if last != nil && last.settled.Result == "acked" {
			c.bad("I29", j, "is done, and who waited was told that it is dead")
		}
	case rig.ToldOther:
		if len(j.ended) == 0 && !j.unknown && !j.expires {
			c.bad("I29", j, "was left alone, and who waited was told: %s", e.Err)
		}
	case rig.ToldNothing:
		if last != nil && late((e.Mono-last.settled.Mono)/int64(time.Millisecond)) {
			c.bad("I29", j, "has ended, and who waited was not told within %v", latest)
		}
	case rig.ToldUnknown:
		if len(j.runs) > 0 && !c.o.Failover {
			c.bad("I29", j, "has run, and who waited was told nothing of its end: %s", e.Err)
		}
	}
	if late(e.Delay) {
		c.bad("I29", j, "had ended %d ms before who waited was told", e.Delay)
	}
}
