package delayq

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
)

// A Cursor is a place in the jobs that a [Query] selects: see [Page.Next]. It is text of letters,
// digits, - and _, and remains valid as long as the queue exists, also in other processes. Its
// content is for delayq only. It holds the IDs of some jobs. It belongs to its query: with another
// topic, state, order or filter it is refused with [ErrCursor]. Limit and Budget can change.
type Cursor string

// cursorVersion is the first byte of a cursor.
const cursorVersion = 1

// queryIDLen is the length of what identifies a query in a cursor.
const queryIDLen = 8

// A queryID identifies the query of a cursor.
type queryID [queryIDLen]byte

// id identifies the query of the walk: everything that decides which jobs it finds, and in which
// order.
func (w *walk) id() (id queryID) {
	q := w.q
	latest := ""
	if q.Latest {
		latest = "latest"
	}
	words := []string{
		w.keys.Root, string(q.State), w.from, w.to, latest, q.IDPrefix, fmt.Sprint(q.MinAttempt), q.Error, q.Failure, string(q.Payload),
	}
	for _, name := range slices.Sorted(maps.Keys(q.Headers)) {
		words = append(words, name, q.Headers[name])
	}
	if q.Key != "" { // the cursors of a query without one are those of the release before
		words = append(words, "key "+q.Key)
	}
	sum := sha256.Sum256(appendWords(nil, words))
	copy(id[:], sum[:])
	return id
}

// newCursor returns the cursor of a place.
func newCursor(id queryID, place []string) Cursor {
	raw := append([]byte{cursorVersion}, id[:]...)
	raw = appendWords(raw, place)
	raw = binary.BigEndian.AppendUint32(raw, crc32.ChecksumIEEE(raw))
	return Cursor(base64.RawURLEncoding.EncodeToString(raw))
}

// decode returns the place of a cursor of a query.
func (c Cursor) decode(id queryID) ([]string, error) {
	const sumLen = 4
	damaged := fmt.Errorf("%w: it is damaged; only Next of a Page is allowed", ErrCursor)
	raw, err := base64.RawURLEncoding.Strict().DecodeString(string(c))
	if err != nil || len(raw) < 1+queryIDLen+sumLen {
		return nil, damaged
	}
	body, sum := raw[:len(raw)-sumLen], raw[len(raw)-sumLen:]
	if binary.BigEndian.Uint32(sum) != crc32.ChecksumIEEE(body) {
		return nil, damaged
	}
	if body[0] != cursorVersion {
		return nil, fmt.Errorf("%w: it is of format %d, and this release reads %d", ErrCursor, body[0], cursorVersion)
	}
	if queryID(body[1:1+queryIDLen]) != id {
		return nil, fmt.Errorf("%w: it is of another query; only Limit and Budget can change from page to page", ErrCursor)
	}
	place, ok := cutWords(body[1+queryIDLen:])
	if !ok || len(place) == 0 {
		return nil, damaged
	}
	return place, nil
}

// appendWords appends words, each with its length.
func appendWords(raw []byte, words []string) []byte {
	for _, word := range words {
		raw = binary.AppendUvarint(raw, uint64(len(word)))
		raw = append(raw, word...)
	}
	return raw
}

// cutWords returns the words that appendWords has appended.
func cutWords(raw []byte) (words []string, ok bool) {
	for len(raw) > 0 {
		size, n := binary.Uvarint(raw)
		if n <= 0 || size > uint64(len(raw)-n) {
			return nil, false
		}
		words = append(words, string(raw[n:n+int(size)]))
		raw = raw[n+int(size):]
	}
	return words, true
}
