package commit

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// replied is an error as go-redis returns a reply of Redis.
type replied string

func (e replied) Error() string { return string(e) }
func (replied) RedisError()     {}

func TestFateOfAPlan(t *testing.T) {
	for _, one := range []struct {
		err  error
		fate Fate
	}{
		{context.DeadlineExceeded, FateAway},
		{errors.New("connection reset"), FateAway},
		{replied("LOADING Redis is loading the dataset in memory"), FateAway},
		{replied("OOM command not allowed when used memory > 'maxmemory'."), FateFull},
		{replied("NOPERM User worker has no permissions to run the 'evalsha' command"), FateRefused},
		{replied("WRONGTYPE Operation against a key holding the wrong kind of value"), FateRefused},
		{fmt.Errorf("%w: %w", ErrPassed, replied("PASSED")), FatePassed},
		{fmt.Errorf("%w: %w", ErrUnconfirmed, replied("NOPERM User worker has no permissions to run the 'wait' command")), FateAway},
	} {
		require.Equal(t, one.fate, FateOf(fmt.Errorf("enqueue: %w", one.err)), one.err)
	}
}
