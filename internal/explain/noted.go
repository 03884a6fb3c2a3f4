package explain

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Progress is how far the job has come, as its handler has said.
type Progress struct {
	Done, Total int64 // a Total of 0 is unknown
	Text        string
	At          time.Time
}

// fewSteps is how many steps a verdict names: the newest.
const fewSteps = 5

// noted returns which partition has the job, of which flow it is a step, how far it has come, and
// how many clients wait for it. Each part is a clause behind a semicolon.
func (f *Facts) noted() string {
	if f.Job == nil {
		return ""
	}
	var b strings.Builder
	b.WriteString(f.where())
	b.WriteString(f.member())
	if p := f.Job.Progress; p != nil {
		fmt.Fprintf(&b, "; its progress is %s", grouped(p.Done))
		if p.Total > 0 {
			b.WriteString(" of " + grouped(p.Total))
		}
		if p.Text != "" {
			fmt.Fprintf(&b, " (%s)", brief(p.Text))
		}
		fmt.Fprintf(&b, ", %s ago", span(f.At.Sub(p.At)))
	}
	if n := len(f.Job.Steps); n > 0 {
		few := f.Job.Steps[max(0, n-fewSteps):]
		names := make([]string, len(few))
		for i, name := range few {
			names[i] = strconv.Quote(name)
		}
		b.WriteString("; ")
		if more := n - len(few); more > 0 {
			fmt.Fprintf(&b, "%d steps are done, the last %d of them ", n, len(few))
		} else {
			b.WriteString("steps done: ")
		}
		b.WriteString(strings.Join(names, ", "))
	}
	switch n := f.Waiters; {
	case n == 1:
		b.WriteString("; 1 client waits for it")
	case n > 1:
		fmt.Fprintf(&b, "; %d clients wait for it", n)
	}
	return b.String()
}
