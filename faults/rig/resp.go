package rig

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
)

// line reads up to the end of a line and adds it to raw.
func line(r *bufio.Reader, raw []byte) (text, all []byte, err error) {
	part, err := r.ReadBytes('\n')
	if err != nil {
		return nil, raw, err
	}
	return bytes.TrimRight(part, "\r\n"), append(raw, part...), nil
}

// bulk reads n bytes and the end of line behind them.
func bulk(r *bufio.Reader, raw []byte, n int) (data, all []byte, err error) {
	at := len(raw)
	raw = append(raw, make([]byte, n+2)...)
	if _, err := io.ReadFull(r, raw[at:]); err != nil {
		return nil, raw[:at], err
	}
	return raw[at : at+n], raw, nil
}

// readRequest reads a command as clients send it: an array of bulk strings. The words share memory
// with raw.
func readRequest(r *bufio.Reader) (words [][]byte, raw []byte, err error) {
	head, raw, err := line(r, nil)
	if err != nil {
		return nil, nil, err
	}
	if len(head) == 0 || head[0] != '*' {
		return bytes.Fields(head), raw, nil
	}
	n, err := strconv.Atoi(string(head[1:]))
	if err != nil {
		return nil, nil, fmt.Errorf("request %q: %w", head, err)
	}
	type span struct{ from, to int }
	spans := make([]span, 0, n)
	for range n {
		if head, raw, err = line(r, raw); err != nil {
			return nil, nil, err
		}
		size, err := strconv.Atoi(string(bytes.TrimPrefix(head, []byte("$"))))
		if err != nil || size < 0 {
			return nil, nil, fmt.Errorf("request with word %q", head)
		}
		from := len(raw)
		if _, raw, err = bulk(r, raw, size); err != nil {
			return nil, nil, err
		}
		spans = append(spans, span{from, from + size})
	}
	for _, s := range spans {
		words = append(words, raw[s.from:s.to])
	}
	return words, raw, nil
}

// readReply reads one value of RESP2 or RESP3, adds its bytes to raw and tells its first byte.
func readReply(r *bufio.Reader, raw []byte) (kind byte, all []byte, err error) {
	head, raw, err := line(r, raw)
	if err != nil {
		return 0, raw, err
	}
	if len(head) == 0 {
		return 0, raw, fmt.Errorf("empty reply")
	}
	kind = head[0]
	parts := 0
	switch kind {
	case '$', '=', '!':
		n, err := strconv.Atoi(string(head[1:]))
		if err != nil {
			return kind, raw, fmt.Errorf("reply %q: %w", head, err)
		}
		if n >= 0 {
			_, raw, err = bulk(r, raw, n)
		}
		return kind, raw, err
	case '*', '~', '>':
		parts = 1
	case '%', '|':
		parts = 2
	default: // + - : _ , # (
		return kind, raw, nil
	}
	n, err := strconv.Atoi(string(head[1:]))
	if err != nil {
		return kind, raw, fmt.Errorf("reply %q: %w", head, err)
	}
	for range max(n, 0) * parts {
		if _, raw, err = readReply(r, raw); err != nil {
			return kind, raw, err
		}
	}
	if kind == '|' { // attributes belong to the value behind them
		return readReply(r, raw)
	}
	return kind, raw, nil
}
