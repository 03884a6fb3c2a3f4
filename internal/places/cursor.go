package places

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"math"
	"strconv"
)

// A cursor is bytes in base64: a version, what identifies its query, the words of a place with
// their lengths, and a checksum.
const (
	plainCursor = 1 // of a topic without partitions, as releases before them have it
	partsCursor = 2 // of one that has some
	sumLen      = 4
)

// queryLen is the length of what identifies a query in a cursor.
const queryLen = 8

// A QueryID identifies the query of a cursor.
type QueryID [queryLen]byte

// EncodeCursor returns the cursor of a place.
func EncodeCursor(id QueryID, place []string) string {
	version := byte(plainCursor)
	if len(place) > 0 && isRef(place[0]) {
		version = partsCursor
	}
	raw := append([]byte{version}, id[:]...)
	raw = AppendWords(raw, place)
	raw = binary.BigEndian.AppendUint32(raw, crc32.ChecksumIEEE(raw))
	return base64.RawURLEncoding.EncodeToString(raw)
}

// DecodeCursor returns the place of a cursor of a query, or what is wrong with it.
func DecodeCursor(text string, id QueryID) (place []string, wrong string) {
	const damaged = "it is damaged; only Next of a Page is allowed"
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) < 1+queryLen+sumLen {
		return nil, damaged
	}
	body, sum := raw[:len(raw)-sumLen], raw[len(raw)-sumLen:]
	if binary.BigEndian.Uint32(sum) != crc32.ChecksumIEEE(body) {
		return nil, damaged
	}
	if body[0] != plainCursor && body[0] != partsCursor {
		return nil, "it is of format " + strconv.Itoa(int(body[0])) + ", and this release reads " + strconv.Itoa(partsCursor)
	}
	if QueryID(body[1:1+queryLen]) != id {
		return nil, "it is of another query; only Limit and Budget can change from page to page"
	}
	place, ok := cutWords(body[1+queryLen:])
	if !ok || len(place) == 0 || isRef(place[0]) != (body[0] == partsCursor) {
		return nil, damaged
	}
	if _, whole := readRef(place[0]); !whole && isRef(place[0]) {
		return nil, damaged
	}
	return place, ""
}

// AppendWords appends words, each with its length.
func AppendWords(raw []byte, words []string) []byte {
	for _, word := range words {
		raw = binary.AppendUvarint(raw, uint64(len(word)))
		raw = append(raw, word...)
	}
	return raw
}

// cutWords returns the words that AppendWords has appended.
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

// No word that begins the place of a topic without partitions has this character there.
func isRef(word string) bool { return word != "" && word[0] == '#' }

// join returns the place of a topic with partitions: one of its places, and the place in that.
func join(r Ref, inner []string) []string { return append([]string{r.text()}, inner...) }

// cutPlace is the opposite of join. A place of a topic that had no partitions is one at home.
func cutPlace(place []string) (r Ref, inner []string, parted bool) {
	if len(place) > 0 && isRef(place[0]) {
		r, _ = readRef(place[0]) // DecodeCursor has tried it
		return r, place[1:], true
	}
	return Ref{}, place, false
}

// Behind returns where a walk through a zset of one place goes on, after the one through all places
// has passed a mark, as the page script reads it. The place of the mark goes on behind its ID.
// Those before it have passed all entries with its score, and those after it none of them. So it is
// in both directions, because the script finds the entries in front of what this returns.
func (m Mark) Behind(at Ref) []string {
	switch c := at.Compare(m.Place); {
	case c < 0:
		return []string{strconv.FormatFloat(math.Nextafter(m.number(), math.Inf(1)), 'g', -1, 64), ""}
	case c > 0:
		return []string{m.Score, ""}
	}
	return []string{m.Score, m.ID}
}
