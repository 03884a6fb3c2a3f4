package commit

// Replacing selects which job of the same ID a new one replaces, as the script reads it.
type Replacing string

// The jobs that a new one can replace: none, any unfinished one, or a dead one.
const (
	ReplaceNone Replacing = ""
	ReplaceAny  Replacing = "r"
	ReplaceDead Replacing = "d"
)
