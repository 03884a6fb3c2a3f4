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
//
// A dot and the time of an edit can follow the reason, which make the entry another one: see
// prelude/trace.lua. DecodeMoved leaves them out. After debounce, a colon, when the burst began, a
// hyphen and until when it puts the job off at most can precede them.
type Moved struct {
	Due         int64
	Why         string // retry, snooze, reschedule, revive, latest, debounce, WhyBury or WhySame
	First, Last int64  // of debounce, Unix ms; 0: not known
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
	m.Why, m.Revived = withoutEdit(field[1]), field[4] == "1"
	if burst, ok := strings.CutPrefix(m.Why, whyDebounce+":"); ok {
		m.Why = whyDebounce
		first, last, _ := strings.Cut(burst, "-")
		m.First, m.Last = times(first), times(last)
	}
	fits := func(n int64) bool { return n >= 0 && n <= MaxTime }
	return m, errors.Join(err1, err2, err3) == nil && fits(m.Due) && fits(int64(m.Spent)) && fits(int64(m.Snoozes))
}

// withoutEdit returns the reason without the time of the edit.
func withoutEdit(why string) string {
	at := strings.LastIndexByte(why, '.')
	if at <= 0 || at == len(why)-1 || strings.Trim(why[at+1:], "0123456789") != "" {
		return why
	}
	return why[:at]
}

// times reads a time of a burst. What follows the digits is of a later release.
func times(text string) int64 {
	end := strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		text = text[:end]
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms > MaxTime {
		return 0
	}
	return ms
}

const (
	// WhyBury is the Why of a job that a client has buried.
	WhyBury = "bury"

	// WhySame is the Why of a job whose due time is that of the record: something else was done
	// with it.
	WhySame = "same"

	whyDebounce = "debounce" // of a job that a burst of calls puts off
)
