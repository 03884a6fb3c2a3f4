package script

import "time"

// CallBytes is about how many bytes one call can read, write or return, beyond those of its first
// job. Redis serves no other client during that time.
const CallBytes = 1 << 20

// MaxTick is how far ahead the timer of a topic may sleep. A job that is due sooner wakes it.
const MaxTick = time.Second
