// Package schedule is the arithmetic of schedules: which slots a definition has, which of them are
// fired, and which job a slot makes. It is pure: it calls neither Redis nor a clock.
//
// A [Rhythm] computes slots one after the other. [Schedule.Decide] applies the policies to the
// slots that are due. [Schedule.JobAt] makes the job of one slot.
package schedule
