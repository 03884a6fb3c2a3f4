package statement

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/delayq/delayq/outbox"
)

// A query is a statement as the driver takes it.
type query struct {
	text  string
	names []string // of the arguments, in the order in which they are bound
}

var (
	nameAt   = regexp.MustCompile(`^:([A-Za-z_][A-Za-z0-9_]*)`)
	dollarAt = regexp.MustCompile(`^\$([A-Za-z_][A-Za-z0-9_]*)?\$`)
	wordAt   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_$]*`)
)

// A statement with one of these words in front would end the transaction.
var (
	ending = []string{"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE", "XA", "PREPARE"}
	// These commit implicitly in MySQL and MariaDB (reference manual, "Statements That Cause an
	// Implicit Commit").
	committing = []string{
		"ALTER", "CREATE", "DROP", "RENAME", "TRUNCATE", "GRANT", "REVOKE", "SET", "LOCK", "UNLOCK", "LOAD", "ANALYZE", "CACHE", "CHECK",
		"FLUSH", "OPTIMIZE", "REPAIR", "RESET", "INSTALL", "UNINSTALL", "CHANGE", "STOP",
	}
)

// blanks are white space in all dialects.
const blanks = " \t\r\n\f\v"

// parse turns a statement with :names into one of the dialect.
func parse(d outbox.Dialect, text string) (query, error) {
	var q query
	var out strings.Builder
	first, ended := "", false
	for rest := text; rest != ""; {
		at := len(text) - len(rest)
		n, err := skip(d, rest, text[max(0, at-escapedLook):at])
		if err != nil {
			return query{}, err
		}
		comment := n > 0 && (strings.HasPrefix(rest, "--") || strings.HasPrefix(rest, "/*") || rest[0] == '#')
		space := n == 0 && strings.IndexByte(blanks+";", rest[0]) >= 0
		switch {
		case ended && !comment && !space:
			return query{}, errors.New("has more than one statement: make it several entries of the list")
		case comment && executable(d, rest):
			return query{}, errors.New("has a comment that is executed")
		case n > 0:
			if first == "" && !comment {
				first = rest[:1]
			}
		case rest[0] == ';':
			ended, n = true, 1
			rest = rest[1:]
			continue
		case strings.HasPrefix(rest, "::"):
			n = 2
		case d != outbox.Postgres && rest[0] == '?', d == outbox.Postgres && len(rest) > 1 && rest[0] == '$' && rest[1] >= '0' && rest[1] <= '9':
			return query{}, fmt.Errorf("has a placeholder at byte %d: write :name", len(text)-len(rest)+1)
		case nameAt.MatchString(rest):
			match := nameAt.FindStringSubmatch(rest)
			at := slices.Index(q.names, match[1])
			if at < 0 || d != outbox.Postgres {
				q.names = append(q.names, match[1])
				at = len(q.names) - 1
			}
			if d == outbox.Postgres {
				out.WriteString("$" + strconv.Itoa(at+1))
			} else {
				out.WriteByte('?')
			}
			rest = rest[len(match[0]):]
			continue
		default:
			if word := wordAt.FindString(rest); word != "" {
				n = len(word)
				if first == "" {
					first = strings.ToUpper(word)
				}
			} else {
				n = 1
				if first == "" && !space && rest[0] != '(' {
					first = rest[:1]
				}
			}
		}
		out.WriteString(rest[:n])
		rest = rest[n:]
	}
	switch {
	case first == "":
		return query{}, errors.New("is empty")
	case slices.Contains(ending, first):
		return query{}, fmt.Errorf("begins with %s: the handler begins and ends the transaction", first)
	case d == outbox.MySQL && first == "EXECUTE": // also EXECUTE IMMEDIATE of MariaDB
		return query{}, errors.New("begins with EXECUTE: what it executes can commit the transaction")
	case d == outbox.MySQL && slices.Contains(committing, first):
		return query{}, fmt.Errorf("begins with %s, which commits the transaction", first)
	}
	q.text = strings.Trim(out.String(), blanks)
	return q, nil
}

// executable reports whether a comment of MySQL or MariaDB is executed.
func executable(d outbox.Dialect, comment string) bool {
	return d == outbox.MySQL && (strings.HasPrefix(comment, "/*!") || strings.HasPrefix(comment, "/*M!"))
}

// skip returns the length of the string, the quoted name or the comment at the beginning of rest.
// It returns 0 if there is none.
func skip(d outbox.Dialect, rest, before string) (int, error) {
	until := func(from int, end, what string) (int, error) {
		n := strings.Index(rest[from:], end)
		if n < 0 {
			return 0, errors.New("has " + what + " without an end")
		}
		return from + n + len(end), nil
	}
	line := func() (int, error) {
		if n := strings.IndexByte(rest, '\n'); n >= 0 {
			return n, nil
		}
		return len(rest), nil
	}
	switch c := rest[0]; {
	case c == '\'':
		escapes := d == outbox.MySQL || d == outbox.Postgres && escaped.MatchString(before)
		return quoted(rest, c, escapes)
	case c == '"':
		return quoted(rest, c, d == outbox.MySQL)
	case c == '`' && d != outbox.Postgres:
		return quoted(rest, c, false)
	case c == '[' && d == outbox.SQLite:
		return until(1, "]", "a name in brackets")
	case c == '#' && d == outbox.MySQL:
		return line()
	case strings.HasPrefix(rest, "--") && (d != outbox.MySQL || len(rest) == 2 || rest[2] <= ' '):
		return line()
	case strings.HasPrefix(rest, "/*") && d != outbox.Postgres:
		return until(2, "*/", "a comment")
	case strings.HasPrefix(rest, "/*"): // those of PostgreSQL nest
		for depth, n := 0, 0; n < len(rest)-1; {
			switch rest[n : n+2] {
			case "/*":
				depth, n = depth+1, n+2
			case "*/":
				if depth, n = depth-1, n+2; depth == 0 {
					return n, nil
				}
			default:
				n++
			}
		}
		return 0, errors.New("has a comment without an end")
	case c == '$' && d == outbox.Postgres:
		if tag := dollarAt.FindString(rest); tag != "" {
			return until(len(tag), tag, "a string in "+tag)
		}
	}
	return 0, nil
}

// escapedLook is how many bytes in front of a string decide whether it has backslashes.
const escapedLook = 2

// escaped matches what is in front of a string of PostgreSQL with backslashes.
var escaped = regexp.MustCompile(`(^|[^A-Za-z0-9_$])[eE]$`)

// quoted returns the length of what is quoted at the beginning of text. A doubled quote does not
// end it, and neither does one after a backslash if there are escapes.
func quoted(text string, quote byte, escapes bool) (int, error) {
	for n := 1; n < len(text); n++ {
		switch {
		case escapes && text[n] == '\\':
			n++
		case text[n] != quote:
		case n+1 < len(text) && text[n+1] == quote:
			n++
		default:
			return n + 1, nil
		}
	}
	return 0, fmt.Errorf("has a %c without an end", quote)
}
