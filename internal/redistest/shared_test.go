package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// again runs the calling test once more in its own process, with more environment, and returns its
// output.
func again(t *testing.T, env ...string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "the process should fail: %s", out)
	return string(out)
}

func indexOf(s, part string) int { return strings.Index(s, part) }

func TestEachRunsOnBoth(t *testing.T) {
	var ran []string
	Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ran = append(ran, t.Name())
		ctx := t.Context()
		prefix := Prefix(t)
		require.NoError(t, rdb.Set(ctx, prefix+":{topic}:k", "v", 0).Err())
		require.NoError(t, rdb.HSet(ctx, prefix+":{topic}:pool", "id", "v").Err())
		var pairs []any // more keys than one page of the scan
		for i := range 1500 {
			pairs = append(pairs, fmt.Sprint(prefix, "x", i), "")
		}
		require.NoError(t, rdb.MSet(ctx, pairs...).Err())
		keys, err := Census(ctx, rdb, prefix+":*")
		require.NoError(t, err)
		require.Equal(t, map[string]string{prefix + ":{topic}:k": "string", prefix + ":{topic}:pool": "hash"}, keys)
		keys, err = Census(ctx, rdb, prefix+"*")
		require.NoError(t, err)
		require.Len(t, keys, 1502)
	})
	require.Contains(t, ran, "TestEachRunsOnBoth/miniredis")
	if _, err := binary(); err == nil {
		require.Contains(t, ran, "TestEachRunsOnBoth/redis")
	}
}

func TestSharedIsOneServer(t *testing.T) {
	require.Equal(t, runID(t, Shared(t)), runID(t, Shared(t)))
}

func TestCensusPassesErrorsOn(t *testing.T) {
	rdb := Shared(t)
	require.NoError(t, rdb.Close())
	_, err := Census(t.Context(), rdb, "*")
	require.ErrorIs(t, err, redis.ErrClosed)
}

func TestPrefixIsFreshAndPlain(t *testing.T) {
	t.Run("odd name: {*?} #1 which is so long that nobody would like to have it in a key", func(t *testing.T) {
		seen := map[string]bool{}
		for range 100 {
			prefix := Prefix(t)
			require.False(t, seen[prefix])
			require.Regexp(t, regexp.MustCompile(`^[A-Za-z0-9_-]{1,60}$`), prefix)
			seen[prefix] = true
		}
	})
}

// verdict is a test that records how it would end.
type verdict struct {
	testing.TB
	skipped, failed string
}

func (v *verdict) Helper()                   {}
func (v *verdict) Skipf(s string, a ...any)  { v.skipped = fmt.Sprintf(s, a...) }
func (v *verdict) Fatalf(s string, a ...any) { v.failed = fmt.Sprintf(s, a...) }

func TestNeed(t *testing.T) {
	t.Setenv("REDIS_SERVER", "no-such-redis-server")
	t.Setenv("CI", "")
	var v verdict
	Need(&v)
	require.Contains(t, v.skipped, "needs redis-server")
	require.Empty(t, v.failed)

	t.Setenv("CI", "true")
	v = verdict{}
	Need(&v)
	require.Contains(t, v.failed, "CI must have redis-server")
	require.Empty(t, v.skipped)

	t.Setenv("REDIS_SERVER", os.Args[0])
	v = verdict{}
	Need(&v)
	require.Equal(t, verdict{}, v)
}

func TestNeedTLS(t *testing.T) {
	Need(t)
	t.Setenv("CI", "")
	var v verdict
	NeedTLS(&v)
	require.Equal(t, speaksTLS(), v.skipped == "", v.skipped)
	require.Empty(t, v.failed)
	t.Setenv("CI", "true")
	v = verdict{}
	NeedTLS(&v)
	require.Equal(t, speaksTLS(), v.failed == "", v.failed)
	require.Empty(t, v.skipped)
}
