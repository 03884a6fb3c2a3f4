package web

import "github.com/delayq/delayq"

// A partsRow describes the partitions of a topic.
type partsRow struct {
	Count   int          `json:"count"` // of those that take new jobs
	ByKey   bool         `json:"by_key"`
	Least   partLoad     `json:"least_loaded"`
	Most    partLoad     `json:"most_loaded"`
	Closing []closingRow `json:"closing,omitempty"` // the oldest first
}

// A partRef names a partition.
type partRef struct {
	Generation int `json:"generation"`
	Index      int `json:"index"`
}

// A partLoad is the work of a partition.
type partLoad struct {
	partRef
	Jobs    int64 `json:"jobs"` // unfinished
	Overdue int64 `json:"overdue"`
	Running int64 `json:"running"`
}

// A closingRow is a generation of partitions that takes no new jobs. That of number 0 is the topic
// before it was divided.
type closingRow struct {
	Generation int   `json:"generation"`
	Count      int   `json:"count"`
	ByKey      bool  `json:"by_key"`
	Jobs       int64 `json:"jobs"` // unfinished
	Kept       int64 `json:"kept"` // what is left of jobs that have ended
}

// partsOf returns what pages show of partitions, or nil if there are none.
func partsOf(s *delayq.PartitionStats) *partsRow {
	if s == nil {
		return nil
	}
	row := &partsRow{Count: s.Count, ByKey: s.ByKey, Least: loadOf(&s.Least), Most: loadOf(&s.Most)}
	for _, c := range s.Closing {
		row.Closing = append(row.Closing, closingRow{c.Generation, c.Count, c.ByKey, c.Jobs, c.Kept})
	}
	return row
}

func loadOf(l *delayq.PartitionLoad) partLoad {
	return partLoad{partRef(l.PartitionRef), l.Jobs, l.Overdue, l.Running}
}

// placeOf returns the partition that has a job, or nil if the topic itself has it.
func placeOf(r delayq.PartitionRef) *partRef {
	if r == (delayq.PartitionRef{}) {
		return nil
	}
	ref := partRef(r)
	return &ref
}

// reasonOf returns a reason as a page shows it.
func reasonOf(r *delayq.Reason) reasonRow {
	row := reasonRow{Code: r.Code, Text: r.Text, Part: r.Partition}
	if r.Partition && r.Whole > 0 {
		row.Share, row.Whole = r.Limit, r.Whole
	}
	return row
}

// A namedLoad is the load of a partition, and what is special about it.
type namedLoad struct {
	Name string
	partLoad
}

// Loads lists the least and the most loaded partition, which can be the same.
func (p *partsRow) Loads() []namedLoad {
	if p.Least.partRef == p.Most.partRef {
		return []namedLoad{{"both", p.Most}}
	}
	return []namedLoad{{"most", p.Most}, {"least", p.Least}}
}

// Ref returns the partition.
func (l namedLoad) Ref() *partRef { return &l.partRef }

// Part names a partition.
func (v *view) Part(r *partRef) string {
	return v.T("parts.ref", number(r.Index), number(r.Generation))
}

// Reason returns the code of a reason in words, and says if it is about the partition of the job.
func (v *view) Reason(r reasonRow) string {
	text := v.T("reason." + string(r.Code))
	switch {
	case r.Whole > 0:
		return v.T("reason.share", text, number(r.Share), number(r.Whole))
	case r.Part:
		return v.T("reason.part", text)
	}
	return text
}
