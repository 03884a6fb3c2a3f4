package commit

// Replacing says what becomes of a job whose ID a new one has, as the script reads it.
type Replacing string

// A new job is refused, or replaces a job: any unfinished one, one that is not running, or a dead
// one. Or a waiting job takes its record, and a running one gets it as its successor: then it is
// due when that one was, or a burst of calls puts it off.
const (
	ReplaceNone     Replacing = ""
	ReplaceAny      Replacing = "r"
	ReplaceWaiting  Replacing = "w"
	ReplaceDead     Replacing = "d"
	ReplaceLatest   Replacing = "l"
	ReplaceDebounce Replacing = "b"
)

// Merges reports whether a job that is there can take the record of the new one.
func (r Replacing) Merges() bool { return r == ReplaceLatest || r == ReplaceDebounce }
