package record

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Moved is a job's entry in the hash moved: its present due time if that is not the record's, the
// reason for it, and its tally. Scripts write an entry as
//
//	<due> <why> <tally>
type Moved struct {
	Due int64
	Why string // retry, snooze, reschedule, revive or WhyBury
	Tally
}

// A Tally is the history of a job in its moved entry. Every write of the entry carries it over.
type Tally struct {
	Spent   int  // finished attempts that no longer count against the retries
	Snoozes int  // number of snoozes since the enqueueing
	Revived bool // the job was revived: its expiry no longer applies
}

// Encode returns the tally as scripts expect and store it.
func (t Tally) Encode() string {
	revived := 0
	if t.Revived {
		revived = 1
	}
	return fmt.Sprintf("%d %d %d", t.Spent, t.Snoozes, revived)
}

// Snoozed returns the tally of a job after its handler snoozes it, with that many finished
// attempts.
func (t Tally) Snoozed(finished int) Tally {
	t.Spent, t.Snoozes = finished, t.Snoozes+1
	return t
}

// DecodeMoved reads an entry. It rejects numbers of more than 13 digits; check.lua removes such an
// entry.
func DecodeMoved(s string) (m Moved, ok bool) {
	field := strings.Fields(s)
	if len(field) != 5 || field[4] != "0" && field[4] != "1" {
		return m, false
	}
	var err1, err2, err3 error
	m.Due, err1 = strconv.ParseInt(field[0], 10, 64)
	m.Spent, err2 = strconv.Atoi(field[2])
	m.Snoozes, err3 = strconv.Atoi(field[3])
	m.Why, m.Revived = field[1], field[4] == "1"
	fits := func(n int64) bool { return n >= 0 && n <= MaxTime }
	return m, errors.Join(err1, err2, err3) == nil && fits(m.Due) && fits(int64(m.Spent)) && fits(int64(m.Snoozes))
}

// WhyBury is the Why of a job that a client has buried.
const WhyBury = "bury"
