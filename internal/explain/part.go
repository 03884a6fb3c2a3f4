package explain

import (
	"fmt"
	"strings"
)

// A Part is the place of a topic with partitions that has the job. What Facts says of ready, of
// leases and of keys is about that place, and what it says of servers is about the topic.
type Part struct {
	Generation, Index int // 0 and 0: the topic itself
	Of                int // partitions of the generation
	Open              int // partitions that take new jobs
	Closed            bool
	Leased            int64 // running jobs of the topic
	Waiting           int   // places in which jobs are ready
	Limit             int   // of running jobs of the topic; 0: none
	Closing           []Closing
}

// A Closing is a generation of partitions that takes no new jobs.
type Closing struct {
	Generation, Of int
	Places         int   // that have jobs yet
	Jobs           int64 // unfinished ones
}

// own reports whether the job is in a partition, and not in the topic itself.
func (p *Part) own() bool { return p != nil && p.Of > 0 }

// running returns the number of running jobs of the topic.
func (f *Facts) running() int64 {
	if f.Part != nil {
		return f.Part.Leased
	}
	return f.Leased
}

// limit returns the limit of running jobs of the topic.
func (f *Facts) limit() int {
	if f.Part != nil {
		return f.Part.Limit
	}
	return f.Limits.Running
}

// where returns which partition has the job, and which are closing, as clauses behind semicolons.
func (f *Facts) where() string {
	p := f.Part
	if p == nil {
		return ""
	}
	var b strings.Builder
	if p.own() {
		fmt.Fprintf(&b, "; it is in partition %d of generation %d, which has %s", p.Index, p.Generation, grouped(int64(p.Of)))
	} else {
		b.WriteString("; it is in the topic itself")
	}
	if p.Closed {
		fmt.Fprintf(&b, ", and new jobs go to %s", partitions(p.Open))
	}
	for _, c := range p.Closing {
		b.WriteString("; " + c.text())
	}
	return b.String()
}

// text returns what a generation has left.
func (c Closing) text() string {
	what, has := fmt.Sprintf("generation %d closes", c.Generation), "have"
	if c.Places == 1 {
		has = "has"
	}
	switch {
	case c.Generation == 0:
		return fmt.Sprintf("the topic itself closes, and has %s left", jobs(c.Jobs))
	case c.Places == 0:
		return what + ", and has no jobs left"
	}
	return fmt.Sprintf("%s: %d of its %s %s %s left", what, c.Places, partitions(c.Of), has, jobs(c.Jobs))
}

func partitions(n int) string {
	if n == 1 {
		return "1 partition"
	}
	return grouped(int64(n)) + " partitions"
}

func jobs(n int64) string {
	if n == 1 {
		return "1 job"
	}
	return grouped(n) + " jobs"
}

// there says that a number is that of the partition of the job.
func (r *Reason) there() string {
	if r.Partition {
		return " in its partition"
	}
	return ""
}

// ofAll says that a pace is that of all partitions.
func (r *Reason) ofAll() string {
	if r.Partition {
		return " of all partitions"
	}
	return ""
}

// reached returns that as many jobs are running as the limit of the topic allows, or the share of
// it that a partition has.
func (r *Reason) reached() string {
	limit := "the limit of the topic is " + grouped(r.Limit)
	if r.Partition {
		limit = fmt.Sprintf("its share of the limit of the topic (%s) is %s", grouped(r.Whole), grouped(r.Limit))
	}
	return fmt.Sprintf("%s running%s, and %s%s", jobsAre(int64(r.Running)), r.there(), limit, r.stragglers())
}
