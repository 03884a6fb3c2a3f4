// Package rig breaks a queue in the ways its users will: it cuts, freezes and slows connections,
// loses replies, kills and stops worker processes, and writes down outside of Redis what really
// happened.
//
// Redis servers, replicas, Sentinels and clusters come from internal/redistest. A Proxy stands
// between them and the library. Workers are the test binary run again: TestMain (or main) must call
// WorkerMain first. Every process notes what it does in a History of JSON lines, stamped with a
// clock that all processes of one machine share, so the lines of several processes can be put in
// order.
package rig
