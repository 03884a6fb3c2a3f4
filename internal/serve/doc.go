// Package serve serves topics: it promotes their due jobs, takes them, runs them, extends their
// leases, tells Redis their outcomes, and prunes what is no longer kept.
//
// A Server has the connections, the loops and the topics of one process. It knows neither handlers
// nor hooks, and decides nothing about a job: a Task runs it, a Judge says how it ends, and an
// Observer is told. The root's Server makes one, from values, and is its only caller.
package serve
