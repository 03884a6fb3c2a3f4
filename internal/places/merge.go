package places

import (
	"cmp"
	"strconv"
)

// A Mark is an entry in the order of all places together: by its score, those of one score by
// their places, and those of one place by their IDs.
type Mark struct {
	Score string // as Redis has it
	Place Ref
	ID    string

	score float64
	read  bool
}

// newMark returns a mark.
func newMark(score string, place Ref, id string) Mark {
	m := Mark{Score: score, Place: place, ID: id, read: true}
	m.score, _ = strconv.ParseFloat(score, 64) // Redis wrote it
	return m
}

func (m *Mark) number() float64 {
	if !m.read {
		*m = newMark(m.Score, m.Place, m.ID)
	}
	return m.score
}

// Compare sorts marks.
func (m Mark) Compare(o Mark) int {
	return cmp.Or(cmp.Compare(m.number(), o.number()), m.Place.Compare(o.Place), cmp.Compare(m.ID, o.ID))
}

// A Line is what is known of one place of a merge.
type Line struct {
	Head Mark // the next job; without Jobs, up to where the place has been read
	Jobs bool // it has a job that was not taken yet
	Over bool // it has none, and never will
}

// nextLine returns the line whose turn is next, or -1 if all are over. If it has no job, the order
// beyond its head is unknown, and it must be read first. backward turns the order round.
func nextLine(lines []Line, backward bool) int {
	next := -1
	for i := range lines {
		if lines[i].Over {
			continue
		}
		if next < 0 {
			next = i
			continue
		}
		c := lines[i].Head.Compare(lines[next].Head)
		if backward {
			c = -c
		}
		// A job at the place up to which it was read is not there twice.
		if c < 0 {
			next = i
		}
	}
	return next
}

// share returns how many entries to read from each of n places for about that many jobs of all.
// Jobs are spread by hashes, so a place has some more than its share now and then.
func share(jobs, n int) int { return jobs/n + jobs/(2*n) + 4 }
