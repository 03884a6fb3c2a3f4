package queuetest

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/script"
)

// LoadScripts makes Redis know all scripts. Requests then name them by their digests only, so that
// a Wire recognises them.
func LoadScripts(ctx context.Context, rdb redis.Scripter) error {
	for _, s := range script.All {
		text, _ := s.Text.(string)
		if err := rdb.ScriptLoad(ctx, text).Err(); err != nil {
			return fmt.Errorf("script %s: %w", s.Name, err)
		}
	}
	return nil
}
