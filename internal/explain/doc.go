// Package explain says why a job is not running: facts of the job become reasons, and reasons
// become sentences in English.
//
// Facts are what was read of the job, its topic and the servers. The package asks nobody and calls
// no script, so it can be tested without a server. Inspector.Explain gathers the facts and is its
// only caller.
package explain
