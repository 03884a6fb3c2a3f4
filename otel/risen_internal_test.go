package delayqotel

import "testing"

// A counter that has fallen back with Redis by some events does not count its whole value again,
// and one that begins anew counts what it has.
func TestCountersThatFall(t *testing.T) {
	for _, c := range []struct{ before, now, want int64 }{
		{0, 0, 0}, {0, 7, 7}, {5, 7, 2}, {7, 7, 0}, {120_000, 119_999, 0}, {120_000, 60_001, 0}, {120_000, 60_000, 60_000}, {120_000, 3, 3}, {1, 0, 0},
	} {
		if got := risen(c.before, c.now); got != c.want {
			t.Errorf("from %d to %d: %d, want %d", c.before, c.now, got, c.want)
		}
	}
}
