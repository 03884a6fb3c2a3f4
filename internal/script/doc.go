// Package script has the scripts of lua/, the keys that they touch, and the calls of them.
//
// Keys are spelled here and nowhere else. A Caller executes a script, sends its text if Redis does
// not know it, and says of each error whether the script may have been executed. It never decides
// what a reply means for a job: the packages above it read the replies.
package script
