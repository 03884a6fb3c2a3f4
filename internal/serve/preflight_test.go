package serve

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/script"
)

// (J13)
func TestJudgeOfRedis(t *testing.T) {
	const good = "# Server\r\nredis_version:7.0.15\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n# Persistence\r\naof_enabled:1\r\n"
	for name, c := range map[string]struct {
		info    string
		refused bool
		level   string // of the one line that is logged; none if empty
		says    string
	}{
		"good":           {info: good},
		"says nothing":   {info: ""},
		"6.2.0":          {info: strings.Replace(good, "7.0.15", "6.2.0", 1)},
		"6.10.1":         {info: strings.Replace(good, "7.0.15", "6.10.1", 1)},
		"10.0.0":         {info: strings.Replace(good, "7.0.15", "10.0.0", 1)},
		"dev":            {info: strings.Replace(good, "7.0.15", "255.255.255", 1)},
		"valkey":         {info: strings.Replace(good, "redis_version:7.0.15", "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1", 1)},
		"6.1.9":          {info: strings.Replace(good, "7.0.15", "6.1.9", 1), refused: true},
		"6.0.16":         {info: strings.Replace(good, "7.0.15", "6.0.16", 1), refused: true},
		"5.0.7":          {info: strings.Replace(good, "7.0.15", "5.0.7", 1), refused: true},
		"2.8":            {info: strings.Replace(good, "7.0.15", "2.8", 1), refused: true},
		"odd":            {info: strings.Replace(good, "7.0.15", "six.two", 1), refused: true},
		"evicts":         {info: strings.Replace(good, "noeviction", "allkeys-lru", 1), level: "ERROR", says: "allkeys-lru"},
		"evicts some":    {info: strings.Replace(good, "noeviction", "volatile-ttl", 1), level: "ERROR", says: "volatile-ttl"},
		"no persistence": {info: strings.Replace(good, "aof_enabled:1", "aof_enabled:0", 1), level: "WARN", says: "append-only"},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			s := &Server{Log: slog.New(slog.NewTextHandler(&log, nil))}
			err := s.judge(script.ParseInfo(c.info))
			if c.refused {
				require.ErrorIs(t, err, ErrVersion)
				return
			}
			require.NoError(t, err)
			if c.level == "" {
				require.Empty(t, log.String())
				return
			}
			require.Equal(t, 1, strings.Count(log.String(), "\n"))
			require.Contains(t, log.String(), "level="+c.level)
			require.Contains(t, log.String(), c.says)
		})
	}
}
