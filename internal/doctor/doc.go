// Package doctor finds what a topic holds that normal operation never produces, and repairs it.
//
// It reads a live topic in bounded calls of the check script, looks up the jobs that seem to have
// no place, and lets the mend script decide about each. It never holds a lease or runs a job, and
// without repair it writes nothing. Inspector.Check, Client.Repair and the rounds of servers call
// it.
package doctor
