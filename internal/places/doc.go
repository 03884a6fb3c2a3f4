// Package places is for those who look at a topic that may have partitions: which topics have its
// jobs, in which order their jobs come together, and what their numbers mean for the whole.
//
// It asks Redis only for maps and for counts. What the places hold is read by its callers, who show
// all of them under the name of the topic itself, the home.
package places
