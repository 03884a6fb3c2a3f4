package record

import (
	"strconv"
	"strings"
)

// PlaceHead returns the head start that a job has by its place in a lane, in ms. It reports whether
// the place is one of a record with that nonce. prelude/place.lua makes places.
func PlaceHead(place, nonce string) (head int64, ok bool) {
	const digits = 8 // before the nonce: the head start plus 2^31
	if len(place) < 1+digits+NonceLen || len(nonce) != NonceLen || !strings.HasSuffix(place, nonce) {
		return 0, false
	}
	end := len(place) - NonceLen
	n, err := strconv.ParseInt(place[end-digits:end], 16, 64)
	if n -= 1 << 31; err != nil || n < -MaxHeadStart || n > MaxHeadStart {
		return 0, false
	}
	return n, true
}
