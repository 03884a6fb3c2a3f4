package commit

import (
	"time"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// The time of enqueueing stands in a record before the payload, and it is Redis's. A script that
// inserts it makes a second string of all bytes, which costs Redis as much as the first one. So a
// large record is sent whole, with a guess of the time. The script takes the guess for the time if
// it is close to its own, and inserts its own otherwise. See lua/prelude/whole.lua.

const (
	// wholeBytes is the size from which on a record is sent whole.
	wholeBytes = 2048

	// guessFor is how long after a reply about a topic Redis's clock can be guessed, and guessFrom
	// over how long replies must have agreed.
	guessFor  = 10 * time.Second
	guessFrom = 100 * time.Millisecond

	// stampBehind and stampAhead say which guesses the script takes, in ms.
	stampBehind = 1000
	stampAhead  = 100
)

// A guess bounds what Redis's clock shows, in Unix ms. The zero guess is none.
type guess struct{ least, most int64 }

// guess returns what the clock of the topic's Redis shows now, as far as its replies tell.
func (g *Group) guess() guess {
	least, most, ok := g.clock.Bounds(time.Now(), guessFor, guessFrom)
	if !ok || most-least > stampAhead {
		return guess{}
	}
	return guess{least, most}
}

// stamp guesses the time of enqueueing of a job. A job that is due now must not be due later, so
// its time is not after Redis's. A delay counts from the time, and must have passed when the job
// is due, so the time of a job with a delay is not before Redis's.
func (n guess) stamp(f *Fresh) int64 {
	if f.delayed() {
		return n.most
	}
	return n.least
}

// delayed reports whether the job is due some time after it is enqueued.
func (f *Fresh) delayed() bool { return f.Opts.DueAt == 0 && f.Opts.DueIn > 0 }

// stampAll gives the records that are sent whole their time of enqueueing, those of so many bytes.
// A job with a key is not sent whole: its due time is its place among the jobs of the key, and by a
// guess it could come before jobs that Redis has stored earlier. Nor is one that can join a burst,
// whose times are Redis's.
func (n guess) stampAll(list []*Op, from int) {
	for _, o := range list {
		f := o.Fresh
		f.stamp = 0
		if n.least > 0 && len(f.Draft) >= from && f.Opts.Key == "" && !f.Replace.Merges() {
			f.stamp = n.stamp(f)
			f.Draft.Enqueue(f.stamp)
		}
	}
}

// enqueuedAt returns the time of enqueueing in the record that a script has stored at a time of
// Redis's clock.
func (f *Fresh) enqueuedAt(now int64) int64 {
	ahead := int64(0)
	if f.delayed() {
		ahead = stampAhead
	}
	if f.stamp == 0 || f.stamp < now-stampBehind || f.stamp > now+ahead {
		return now
	}
	return f.stamp
}

// addRecord adds the record of a job as the two words that scripts expect.
func (f *Fresh) addRecord(c *script.Call) {
	if f.stamp != 0 {
		c.Add((*wholeWord)(&f.Draft), "")
	} else {
		c.Add((*headWord)(&f.Draft), (*tailWord)(&f.Draft))
	}
}

// These are words of a call. go-redis asks them for their bytes when it writes them.
type (
	wholeWord record.Draft
	headWord  record.Draft
	tailWord  record.Draft
)

func (w *wholeWord) MarshalBinary() ([]byte, error) { return *w, nil }
func (w *headWord) MarshalBinary() ([]byte, error)  { return record.Draft(*w).Head(), nil }
func (w *tailWord) MarshalBinary() ([]byte, error)  { return record.Draft(*w).Tail(), nil }

// A hook that prints commands, as that of redisotel does, prints no records.
func (w *wholeWord) String() string { return "record" }
func (w *headWord) String() string  { return "head" }
func (w *tailWord) String() string  { return "tail" }
