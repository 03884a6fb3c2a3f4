// Package commit sends the calls of a client about single jobs to Redis, and those of concurrent
// callers together, as a database commits a group of transactions. A Group has the waiting calls of
// one topic, and decides when they are sent; a Batch has those of one caller about many jobs, and a
// Plan those that an outbox holds as rows. The package never reads what an answer means for the
// caller: an Op keeps the letter or the row that the script has replied, and delayq.Client, its
// only caller, turns that into an error or a job.
package commit
