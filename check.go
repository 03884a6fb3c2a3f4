package delayq

import "context"

// What a check finds.
const (
	// FindingNoPlace is a job that would never run: its record is there, and its ID is nowhere. Repaired: the job goes back to where
	// its record and its books say that it belongs.
	FindingNoPlace = "no place"

	// FindingNoRecord is an ID without a record. Repaired: it is removed, for there is nothing to run. One in leases is left alone: it
	// belongs to a running handler, and goes when that ends.
	FindingNoRecord = "no record"

	// FindingTwoPlaces is a job in two places. Repaired: one that is dead is removed from the bucket, or from the dead if it was enqueued after
	// that burial, which was that of a former job of its ID. One that is leased is left alone: the other place counts when the lease is over.
	FindingTwoPlaces = "two places"

	// FindingOrphan is an entry in attempts, errors, moved or results that belongs to no job. Repaired: it is removed.
	FindingOrphan = "orphan"

	// FindingUnreadable is an entry in attempts or moved that is not one. Repaired: it is removed, and counts as none. Of a schedule, a
	// state in fired that cannot be read or is of another definition: repaired, it keeps what can be read.
	FindingUnreadable = "unreadable"

	// FindingScore is a time that cannot be, of more than 13 digits (of a slot, also one that is no whole number or negative). Repaired: the due time is worked out anew; a lease lapses
	// now, a dead job was buried now, a done one is kept no longer; a schedule goes on with the first slot from now on.
	FindingScore = "score"

	// FindingNoSlot is a schedule that would fire no more: it is neither paused nor ended, and has no next slot. Repaired: a server works out
	// the first one from now on. Slots since then have neither a job nor a count.
	FindingNoSlot = "no slot"

	// FindingNoState is a schedule without its state. Repaired: it has a new one, as if nothing had been fired; if it was paused or had
	// ended, it goes on.
	FindingNoState = "no state"

	// FindingNoHistory is a schedule without the history of its runs. Repaired: it has an empty one.
	FindingNoHistory = "no history"

	// FindingNoSchedule is an entry of a schedule that has no definition any more. Repaired: it is removed.
	FindingNoSchedule = "no schedule"

	// FindingWrongType is a key of a wrong type; the ID is empty. Not repaired: what it holds, nobody knows. What needs that key is not
	// looked at, the rest is.
	FindingWrongType = "wrong type"

	// FindingAnchor is the anchor of the leases without a lease. Repaired: it is removed.
	FindingAnchor = "anchor"
)

// A Finding is one thing that no transition leaves behind: a lost write, an evicted key or a hand has been there.
type Finding struct {
	Key    string // the name of the key it was found in, as in docs/protocol.md
	ID     string // of the job, or the name of the schedule; empty for FindingAnchor and FindingWrongType
	What   string // one of the constants
	Mended bool   // it was repaired
}

// A CheckReport is what Check has found in a topic. Findings holds the first 1,000, Found and Mended count all.
type CheckReport struct {
	Jobs     int64          // records that were looked at
	Findings []Finding      //
	Found    map[string]int // how many of each kind: FindingNoPlace and so on; empty: all is well
	Mended   int            // how many of them were repaired
}

// Check looks through a topic, while it is in use, for what no transition leaves behind: after a failover that lost writes, an evicted or a
// hand-deleted key. With repair it puts every job back to where it loses nothing and starts none before it is due; without, it
// writes nothing. A server does the same by itself, with repair: see docs/operations.md for what it can and cannot tell.
//
// It makes one bounded call after the other, one to two thousand for each million of jobs, and keeps eight bytes for each ready job. A job whose
// place was lost goes to the tail of ready, or to the bucket; those found together go in the order of their due times. A
// dead one is dead again if its books tell. The report of what was looked at so far is returned beside an error, too. Safe for
// concurrent use.
func (c *Client) Check(ctx context.Context, topic string, repair bool) (*CheckReport, error) {
	place := located{call: "check", topic: topic}
	if err := c.validate(ctx, topic, ""); err != nil {
		return nil, place.at(err)
	}
	d := newDoctor(c.scripts, c.rdb, newKeys(c.o.prefix, topic), repair)
	if err := d.check(ctx); err != nil {
		return d.report, place.at(c.unsure(err))
	}
	return d.report, nil
}
