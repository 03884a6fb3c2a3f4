package gateway

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
)

// A Right is what a token may do in its topics.
type Right string

// The rights of tokens.
const (
	Produce Right = "produce" // enqueue jobs, start flows, read, wait for, move and cancel jobs
	Consume Right = "consume" // take, extend and settle jobs
	Operate Right = "operate" // read, wait for, move, cancel, revive and bury jobs
)

// Rights are all rights.
var Rights = []Right{Produce, Consume, Operate}

// The bounds of a file of tokens.
const (
	mostTokensFile = 1 << 20 // bytes
	mostTokens     = 1000
	mostToken      = 512 // bytes of a token that is compared
)

// A subject is who a token belongs to.
type subject struct {
	name   string
	sum    [sha256.Size]byte
	rights []Right
	topics []string // patterns
}

// may reports whether the subject has one of these rights in a topic.
func (s *subject) may(topic string, rights ...Right) bool {
	return slices.ContainsFunc(rights, func(r Right) bool { return slices.Contains(s.rights, r) }) &&
		slices.ContainsFunc(s.topics, func(pattern string) bool { return matches(pattern, topic) })
}

// matches reports whether a topic is one of a pattern, in which each * stands for any text.
func matches(pattern, topic string) bool {
	parts := strings.Split(pattern, "*")
	rest, ok := strings.CutPrefix(topic, parts[0])
	if len(parts) == 1 {
		return ok && rest == ""
	}
	last := parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		at := strings.Index(rest, part)
		if at < 0 {
			return false
		}
		rest = rest[at+len(part):]
	}
	return ok && strings.HasSuffix(rest, last)
}

// Tokens are the tokens of a file, as SHA-256.
type Tokens struct {
	path string
	list atomic.Pointer[[]*subject]
}

// NewTokens reads a file of tokens.
func NewTokens(path string) (*Tokens, error) {
	t := &Tokens{path: path}
	return t, t.Load()
}

// Load reads the file anew. With a mistake in it, the tokens stay those that they were.
func (t *Tokens) Load() error {
	list, err := readTokens(t.path)
	if err == nil {
		t.list.Store(&list)
	}
	return err
}

// alone reports whether there is one token.
func (t *Tokens) alone() bool { return len(*t.list.Load()) == 1 }

// of returns whose token this is; nil: nobody's. It looks at all tokens, however soon it has found
// the one.
func (t *Tokens) of(token string) (found *subject) {
	if token == "" || len(token) > mostToken {
		return nil
	}
	sum := sha256.Sum256([]byte(token))
	for _, s := range *t.list.Load() {
		if subtle.ConstantTimeCompare(sum[:], s.sum[:]) == 1 {
			found = s
		}
	}
	return found
}

// readTokens reads the lines of a file of tokens.
func readTokens(name string) ([]*subject, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--tokens: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("--tokens: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 && info.Mode().IsRegular() && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("--tokens %s: others can write it (mode %04o); expected 0640 or 0600", name, mode)
	}
	text, err := io.ReadAll(io.LimitReader(file, mostTokensFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("--tokens: %w", err)
	case len(text) > mostTokensFile:
		return nil, fmt.Errorf("--tokens %s: has more than %d bytes", name, mostTokensFile)
	}
	var list []*subject
	n := 0
	for line := range bytes.Lines(text) {
		n++
		line := strings.TrimSpace(string(line))
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		s, wrong := parseToken(line)
		for _, other := range list {
			switch {
			case wrong != "":
			case other.name == s.name:
				wrong = "the name is there twice"
			case other.sum == s.sum:
				wrong = fmt.Sprintf("the token is that of %q, too", other.name)
			}
		}
		switch {
		case wrong != "": // no text shows what may be a token
			return nil, fmt.Errorf("--tokens %s: line %d: %s", name, n, wrong)
		case len(list) == mostTokens:
			return nil, fmt.Errorf("--tokens %s: line %d: at most %d tokens are allowed", name, n, mostTokens)
		}
		list = append(list, s)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("--tokens %s: it has no tokens; delayq gateway --add-token writes a line for it", name)
	}
	return list, nil
}

// parseToken reads a line: name, SHA-256, rights and topics, with colons between them. Topics are
// the rest of the line, because they can have colons.
func parseToken(line string) (s *subject, wrong string) {
	parts := strings.SplitN(line, ":", 4)
	if len(parts) < 4 {
		return nil, "expected name:sha256:rights:topics"
	}
	s = &subject{name: parts[0]}
	sum, err := hex.DecodeString(parts[1])
	switch {
	case s.name == "" || strings.TrimSpace(s.name) != s.name:
		return nil, "it has no name; expected name:sha256:rights:topics"
	case err != nil || len(sum) != sha256.Size:
		return nil, "the second part is no SHA-256 in 64 hexadecimal digits"
	}
	s.sum = [sha256.Size]byte(sum)
	for _, word := range strings.Split(parts[2], ",") {
		right := Right(strings.TrimSpace(word))
		if !slices.Contains(Rights, right) {
			return nil, fmt.Sprintf("the right %q: allowed are produce, consume and operate", right)
		}
		s.rights = append(s.rights, right)
	}
	for _, topic := range strings.Split(parts[3], ",") {
		if topic = strings.TrimSpace(topic); topic == "" {
			return nil, "it names no topics; * stands for any text"
		}
		s.topics = append(s.topics, topic)
	}
	return s, ""
}

// NewToken makes a token, and the line for it in a file of tokens.
func NewToken(name, rights, topics string) (token, line string, err error) {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // it never fails
	token = "dq_" + base64.RawURLEncoding.EncodeToString(raw[:])
	sum := sha256.Sum256([]byte(token))
	line = name + ":" + hex.EncodeToString(sum[:]) + ":" + rights + ":" + topics
	if _, wrong := parseToken(line); wrong != "" {
		return "", "", fmt.Errorf("%s", wrong)
	}
	if strings.ContainsAny(line, "\r\n") || strings.HasPrefix(name, "#") {
		return "", "", fmt.Errorf("a name has neither # in front nor a line break, and no topic has one")
	}
	return token, line, nil
}
