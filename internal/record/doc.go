// Package record encodes and decodes everything that delayq keeps in Redis. It is the one place
// that knows these bytes: clients and servers use it, and so does whatever else reads or writes a
// queue. docs/protocol.md describes the same bytes for other languages.
//
//	key in Redis          type of the value    functions
//	pool                  Job, Options         Encode, Decode, DecodeMeta, NonceOf
//	errors                Failure              Failure.Encode, DecodeFailures
//	leases (the scores)   LeaseEnd, Fence      ParseLeaseEnd, ParseFence
//	moved                 Moved, Tally         Tally.Encode, DecodeMoved
//	results               Done                 Done.Encode, DecodeDone
//	meta, field pauses    Pause                DecodePauses
//	schedules             Definition, Spec     Definition.Encode, DecodeDefinition
//	fired                 ScheduleState        DecodeScheduleState
//	runs                  Run                  Run.Encode, DecodeRun, CutRunCounts
//	servers               Heartbeat            Heartbeat.Encode, DecodeHeartbeat
//	control (a channel)   Message              DecodeMessage
//	ID of a schedule's    SlotID               DecodeSlotID
//	job, in any key
//
// A value that only scripts write has no Encode. Where a script adds something to what Go sends,
// the comment on Encode says what.
//
// Times are in Unix milliseconds by Redis's clock and durations in milliseconds, unless a comment
// says otherwise. Decoding never panics and never trusts a length. What a later release may have
// added is ignored, except in a [Job], which then returns [ErrNewer].
package record

// Bounds of what is kept.
const (
	MaxName    = 255               // bytes of a topic, a prefix or the name of a schedule
	MaxID      = 1 << 10           // bytes of a job ID
	MaxHeaders = 16 << 10          // bytes of all headers of a job
	MaxTime    = 9_999_999_999_999 // Unix ms: 2286-11-20T17:46:39.999Z, the last with 13 digits
	MaxDelay   = 3_153_600_000_000 // ms: 100 years
)
