package delayq

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// LoadScripts makes Redis know all scripts.
func LoadScripts(ctx context.Context, rdb redis.Scripter) error {
	for _, s := range allScripts {
		if err := rdb.ScriptLoad(ctx, fmt.Sprint(s.text)).Err(); err != nil {
			return err
		}
	}
	return nil
}
