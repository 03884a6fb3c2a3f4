package queuetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

// LoadScripts makes Redis know all scripts. Requests then name them by their digests only, so that
// a Wire recognises them.
func LoadScripts(ctx context.Context, rdb redis.Scripter) error {
	for name, digest := range delayq.Scripts() {
		text, err := source(name)
		if err != nil {
			return err
		}
		loaded, err := rdb.ScriptLoad(ctx, text).Result()
		if err == nil && loaded != digest {
			err = fmt.Errorf("the script %s has another digest", name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// source returns the text of a script as the library sends it: the parts that its header names
// after Uses, the script, and the script that the header names after Then.
func source(name string) (text string, err error) {
	read := func(name string) string {
		file, e := os.ReadFile(redistest.Path("lua", name+".lua"))
		err = errors.Join(err, e)
		return string(file)
	}
	body := read(name)
	header := func(word string) []string {
		var words []string
		for line := range strings.Lines(body) {
			if after, ok := strings.CutPrefix(line, "-- "+word+": "); ok {
				words = append(words, strings.Fields(after)...)
			}
		}
		return words
	}
	for _, part := range header("Uses") {
		text += read("prelude/" + part)
	}
	text += body
	for _, next := range header("Then") {
		text += read(next)
	}
	return text, err
}
