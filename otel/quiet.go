package delayqotel

import (
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
)

// Quiet keeps the commands of delayq with the default prefix out of the traces of redisotel. It
// reports whether a command gets no span:
//
//	redisotel.InstrumentTracing(rdb,
//		redisotel.WithCommandFilter(delayqotel.Quiet),
//		redisotel.WithCommandsFilter(delayqotel.QuietPipeline))
//
// See [Filter.Quiet].
func Quiet(cmd redis.Cmder) bool { return QuietPrefix(defaultPrefix).Quiet(cmd) }

// QuietPipeline is [Quiet] for pipelines.
func QuietPipeline(cmds []redis.Cmder) bool { return QuietPrefix(defaultPrefix).QuietPipeline(cmds) }

// defaultPrefix is that of [delayq.Prefix].
const defaultPrefix = "delayq"

// A Filter tells the commands of delayq from those of the program. See [QuietPrefix].
type Filter struct{ prefix string }

// QuietPrefix returns the filters for a queue with this [delayq.Prefix].
func QuietPrefix(prefix string) Filter { return Filter{prefix} }

// Quiet reports whether a command gets no span: it calls a script of delayq, or it is about a key
// or a channel of the prefix. Commands that log in get none either, because redisotel would show
// the password, and a filter of one's own replaces the filter that redisotel has for them. All
// other commands get one, among them those of delayq that name no key, such as PING and TIME.
func (f Filter) Quiet(cmd redis.Cmder) bool {
	return ours(cmd) || f.about(cmd) || logsIn(cmd)
}

// QuietPipeline is [Filter.Quiet] for pipelines. A pipeline gets no span if all of its commands are
// those of delayq, or if one of them logs in.
func (f Filter) QuietPipeline(cmds []redis.Cmder) bool {
	if slices.ContainsFunc(cmds, logsIn) {
		return true
	}
	found := false
	for _, cmd := range cmds {
		switch {
		case ours(cmd), f.about(cmd):
			found = true
		case !slices.Contains(keyless, strings.ToLower(cmd.Name())):
			return false
		}
	}
	return found
}

// keyless are the commands without a key that delayq sends along with others.
var keyless = []string{"config", "info", "ping", "time", "wait"}

// digests holds the digests of the scripts of delayq.
var digests = sync.OnceValue(func() map[string]bool {
	all := make(map[string]bool)
	for _, digest := range delayq.Scripts() {
		all[digest] = true
	}
	return all
})

// ours reports whether a command calls a script of delayq.
func ours(cmd redis.Cmder) bool {
	verb, ok := strings.CutPrefix(cmd.Name(), "eval")
	if !ok {
		return false
	}
	script := word(cmd, 1)
	if !strings.HasPrefix(verb, "sha") { // the text of a script that Redis did not know
		sum := sha1.Sum([]byte(script))
		script = hex.EncodeToString(sum[:])
	}
	return digests()[script]
}

// about reports whether a command is about a key or a channel of the prefix, by its first argument.
func (f Filter) about(cmd redis.Cmder) bool {
	rest, ok := strings.CutPrefix(word(cmd, 1), f.prefix+":")
	if !ok {
		return false
	}
	if strings.HasPrefix(rest, "{") {
		return strings.Contains(rest, "}:")
	}
	name, _, _ := strings.Cut(rest, ":")
	return slices.Contains(whole, name)
}

// whole are the keys and channels of a prefix that belong to no topic.
var whole = []string{"audit", "control", "ring", "servers", "topics"}

// logsIn reports whether a command has a password.
func logsIn(cmd redis.Cmder) bool {
	switch strings.ToLower(cmd.Name()) {
	case "auth":
		return true
	case "hello":
		for at := range cmd.Args() {
			if strings.EqualFold(word(cmd, at), "auth") {
				return true
			}
		}
	}
	return false
}

// word returns an argument of a command if it is a text.
func word(cmd redis.Cmder, at int) string {
	args := cmd.Args()
	if at >= len(args) {
		return ""
	}
	switch x := args[at].(type) {
	case string:
		return x
	case *string:
		if x != nil {
			return *x
		}
	case []byte:
		return string(x)
	}
	return ""
}
