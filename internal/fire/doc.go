// Package fire makes the jobs of schedules whose slots have come.
//
// A Firer belongs to one topic and decides which slots are to be fired, skipped or kept waiting. It
// reaches Redis only through the function that it is given, and never runs a job: those that it
// makes are jobs like any others. The promote loop of a topic calls it, and is the only one that
// does.
package fire
