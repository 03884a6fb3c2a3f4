package delayq

import (
	"context"

	"github.com/delayq/delayq/internal/doctor"
	"github.com/delayq/delayq/internal/script"
)

// A FindingKind is the kind of a [Finding].
type FindingKind string

// The kinds of findings of [Inspector.Check] and [Client.Repair]. Names in lower case, such as
// bucket, are keys in docs/protocol.md. The place of a job is the one of ready, bucket, leases and
// dead that holds its ID.
const (
	// FindingNoPlace is a job that would never run: it has a record, but its ID is neither in ready
	// nor in bucket, leases or dead. Repair: it goes back to the place that its record, its
	// attempts and its errors indicate.
	FindingNoPlace FindingKind = "no_place"

	// FindingNoRecord is an ID without a record. Repair: removed, since there is nothing to run. An
	// ID in leases is left alone, because it belongs to a running handler and is removed when that
	// handler returns.
	FindingNoRecord FindingKind = "no_record"

	// FindingTwoPlaces is a job in two places. Repair: a dead job is removed from bucket. If the
	// job was enqueued after the burial, an earlier job with its ID was buried, and the ID is
	// removed from dead instead. A leased job is left alone: the other place counts when the lease
	// is over.
	FindingTwoPlaces FindingKind = "two_places"

	// FindingOrphan is an entry in attempts, errors, moved or results without a job. Repair:
	// removed.
	FindingOrphan FindingKind = "orphan"

	// FindingUnreadable is a malformed entry in attempts or moved. Repair: removed, as if there had
	// been no entry. For a schedule it is a state in the key fired that is malformed or belongs to
	// another definition. Repair: the readable parts are kept.
	FindingUnreadable FindingKind = "unreadable"

	// FindingBadTime is an impossible time: one of more than 13 digits, or a slot that is negative
	// or not a whole number. Repair: the due time is computed again; a lease expires now; a dead
	// job counts as buried now; a done job is no longer kept; a schedule continues with the first
	// slot from now on.
	FindingBadTime FindingKind = "bad_time"

	// FindingNoSlot is a schedule that would never fire again: it is neither paused nor ended, but
	// has no next slot. Repair: a server computes the first slot from now on. Slots in between
	// have neither a job nor a count.
	FindingNoSlot FindingKind = "no_slot"

	// FindingNoState is a schedule without its state. Repair: it gets a new one, as if nothing had
	// been fired. If it was paused or had ended, it continues.
	FindingNoState FindingKind = "no_state"

	// FindingNoHistory is a schedule without the history of its runs. Repair: it gets an empty
	// one.
	FindingNoHistory FindingKind = "no_history"

	// FindingNoSchedule is an entry of a schedule without a definition. Repair: removed.
	FindingNoSchedule FindingKind = "no_schedule"

	// FindingWrongType is a key of a wrong type. The ID is empty. There is no repair, because the
	// contents are unknown. Checks that need this key are skipped; all others are made.
	FindingWrongType FindingKind = "wrong_type"

	// FindingNoLane is a job with a key whose place in its lane is not known: keyed has no entry of
	// it, or that of a former job with its ID or of another key. Repair: it has the place that lane
	// has of it, or a new one.
	FindingNoLane FindingKind = "no_lane"

	// FindingNoTurn is a key whose jobs wait, and which gets no turn. The ID is the key. Repair: it
	// is the next one.
	FindingNoTurn FindingKind = "no_turn"

	// FindingNoBlock is a job that has failed in a topic with Ordered [Limits], and that its key
	// does not wait for. Repair: it does.
	FindingNoBlock FindingKind = "no_block"

	// FindingLoneAnchor is the anchor, a member that accompanies the leases of a topic, without any
	// lease. Repair: removed.
	FindingLoneAnchor FindingKind = "lone_anchor"

	// FindingUndelivered is a topic to which jobs of [Job.Then] have not been passed on for more
	// than a minute. The ID is that topic. [Server.Health] and the log of the servers have the
	// error. There is no repair: servers try again until they succeed.
	FindingUndelivered FindingKind = "undelivered"
)

// A Finding is one inconsistency that normal operation never produces. Its causes are lost writes,
// evicted keys and manual edits.
type Finding struct {
	Key string // name of the key, as in docs/protocol.md
	// ID is the ID of the job, the name of the schedule or, if Key is turn or rules, the key of
	// jobs. For [FindingUndelivered] it is a topic. It is empty for [FindingLoneAnchor] and
	// [FindingWrongType].
	ID       string
	Kind     FindingKind
	Repaired bool // always false in a report of [Inspector.Check]
}

// A CheckReport is the result of [Inspector.Check] or [Client.Repair] for a topic. Findings lists
// the first 1,000. Found and Repaired count all of them.
type CheckReport struct {
	Jobs     int64 // number of records that were examined
	Findings []Finding
	Found    map[FindingKind]int // number of findings of each kind; empty if there are none
	Repaired int                 // number of findings that were repaired
}

// Check scans a live topic for inconsistencies. Normal operation never produces them, but a
// failover with lost writes, an eviction or a manual edit can. Check writes nothing.
// docs/operations.md describes what it can and cannot detect.
//
// Check makes bounded calls, one after another: one to two thousand for each million jobs. It keeps
// eight bytes in memory for each ready job. It is safe for concurrent use.
//
// If Check returns an error, it also returns the report of the part that it has scanned.
func (i *Inspector) Check(ctx context.Context, topic string) (*CheckReport, error) {
	place := script.Place{Call: "check", Topic: topic}
	if err := i.validate(ctx, topic, ""); err != nil {
		return nil, place.At(err)
	}
	k := script.NewKeys(i.o.prefix, topic)
	d := doctor.New(i.scripts, i.rdb, k, false)
	err := i.scan(ctx, k.Pool, func(i *Inspector) error {
		d = doctor.New(i.scripts, i.rdb, k, false)
		return d.Check(ctx)
	})
	return checkReport(&d.Report), place.At(err)
}

// Repair does what [Inspector.Check] does, and repairs what it finds. It loses no job, and lets no
// job start before it is due. Servers do the same by themselves.
//
// A job that would never run becomes scheduled, or ready behind all other ready jobs. Jobs found
// together are ordered by due time. A job that was dead is dead again if its attempts or errors
// show it. Repair returns [ErrUnknownOutcome] if Redis did not confirm a repair; it can safely be
// called again.
func (c *Client) Repair(ctx context.Context, topic string) (*CheckReport, error) {
	ctx, end := c.begin(ctx, CallEvent{Name: "repair", Topic: topic})
	place := script.Place{Call: "repair", Topic: topic}
	if err := c.validate(ctx, topic, ""); err != nil {
		return nil, end.err(place.At(err))
	}
	d := doctor.New(c.scripts, c.rdb, script.NewKeys(c.o.prefix, topic), true)
	err := d.Check(ctx)
	if err != nil {
		err = place.At(c.unsure(err))
	}
	return checkReport(&d.Report), end.err(c.audited(ctx, place, "", "", int64(d.Report.Mended), err))
}

// checkReport returns the report of a doctor.
func checkReport(r *doctor.Report) *CheckReport {
	c := &CheckReport{Jobs: r.Jobs, Found: make(map[FindingKind]int, len(r.Found)), Repaired: r.Mended}
	for _, f := range r.Findings {
		c.Findings = append(c.Findings, Finding{Key: f.Key, ID: f.ID, Kind: FindingKind(f.Kind), Repaired: f.Mended})
	}
	for kind, n := range r.Found {
		c.Found[FindingKind(kind)] = n
	}
	return c
}
