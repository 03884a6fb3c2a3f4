package outbox

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A relay should be started anew when any shard has had no turn for longer than three leases, and
// not earlier, and when Run has returned. It is also live before that is called.
func TestRelayIsLiveForThreeLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ob, err := New(SQLite, Shards(3))
		require.NoError(t, err)
		for shard := range 3 {
			r := &Relay{box: ob, o: relayOptions{lease: 10 * time.Second}}
			require.NoError(t, r.Live())
			r.starts(true)
			time.Sleep(30 * time.Second)
			require.NoError(t, r.Live())
			for other := range 3 {
				if other != shard {
					r.note(&holding{Relay: r, shard: other}, errors.New("a turn without success is one too"))
				}
			}
			require.NoError(t, r.Live())
			time.Sleep(time.Millisecond)
			require.ErrorContains(t, r.Live(), "30.001s")
			r.note(&holding{Relay: r, shard: shard}, nil)
			require.NoError(t, r.Live())
			r.starts(false)
			require.Error(t, r.Live())
		}
	})
}
