package script

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// replied is an error as go-redis returns a reply of Redis.
type replied string

func (e replied) Error() string { return string(e) }
func (replied) RedisError()     {}

// What releases of Redis return for the same errors: plain, in a script of 6.2.16, and in a script
// of 7.0.15, 7.4.1 and Valkey 8.0.1, which add the same text. Every form has the same code.
func TestRedisCode(t *testing.T) {
	const (
		call = "ERR Error running script (call to f_beef354d82996a708aa0deac229a63225ff0dd9c): @user_script:1: "
		in7  = " script: beef354d82996a708aa0deac229a63225ff0dd9c, on @user_script:1."
	)
	for code, forms := range map[string][]replied{
		"WRONGTYPE": {
			"WRONGTYPE Operation against a key holding the wrong kind of value",
			call + "WRONGTYPE Operation against a key holding the wrong kind of value",
			"WRONGTYPE Operation against a key holding the wrong kind of value" + in7,
			"ERR Error compiling script (new function): :98: WRONGTYPE Operation against a key holding the wrong kind of value stack traceback: [G]: ?",
		},
		"READONLY": {
			"READONLY You can't write against a read only replica.",
			call + "@user_script: 1: -READONLY You can't write against a read only replica.",
			"READONLY You can't write against a read only replica." + in7,
			"ERR READONLY You can't write against a read only replica.", // of some proxies
		},
		"MISCONF": {
			"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
			call + "@user_script: 1: -MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
		},
		"NOREPLICAS": {
			"NOREPLICAS Not enough good replicas to write.",
			call + "@user_script: 1: -NOREPLICAS Not enough good replicas to write.",
			"@user_script: 40: -NOREPLICAS Not enough good replicas to write.",
			"NOREPLICAS Not enough good replicas to write." + in7,
		},
		"OOM": {
			"OOM command not allowed when used memory > 'maxmemory'.",
			call + "@user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.",
			"OOM command not allowed when used memory > 'maxmemory'." + in7,
		},
		"NOPERM": {
			"NOPERM this user has no permissions to run the 'set' command or its subcommand",
			call + "@user_script: 1: The user executing the script can't run this command or subcommand",
			call + "@user_script: 1: The user executing the script can't access at least one of the keys mentioned in the command arguments",
			call + "@user_script: 1: The user executing the script can't publish to the channel mentioned in the command",
			"@user_script: 1: The user executing the script can't run this command or subcommand",
			"ERR The user executing the script can't run this command or subcommand" + in7,
			"ERR The user executing the script can't access at least one of the keys mentioned in the command arguments" + in7,
			"ERR The user executing the script can't run this command or subcommand",
			"NOPERM User app has no permissions to run the 'set' command", // from 7.2 on
			"ERR ACL failure in script: User app has no permissions to run the 'set' command" + in7,
			"ERR ACL failure in script: No permissions to access a key" + in7,
			"ERR ACL failure in script: No permissions to access a channel" + in7,
			"ERR ACL failure in script: User app has no permissions to run the 'set' command",
		},
		"ERR": {
			"ERR wrong number of arguments for 'get' command",
			call + "@user_script: 1: Wrong number of args calling Redis command From Lua script",
			"ERR Wrong number of args calling command from script" + in7,
			"ERR unknown command 'info', with args beginning with: ",
			call + "user_script:1: attempt to perform arithmetic on a nil value",
			"ERR user_script:1: attempt to perform arithmetic on a nil value" + in7,
			"ERR max number of clients reached",
			"something else", "",
		},
		"NOAUTH":    {"NOAUTH Authentication required."},
		"NOSCRIPT":  {"NOSCRIPT No matching script. Please use EVAL.", "NOSCRIPT No matching script.", "ERR NOSCRIPT No matching script. Please use EVAL"},
		"CROSSSLOT": {"CROSSSLOT Keys in request don't hash to the same slot"},
		"BUSY": {
			"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
			"BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		},
		"MASTERDOWN": {"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."},
		"WRONGPASS":  {"WRONGPASS invalid username-password pair or user is disabled."},
	} {
		for _, form := range forms {
			require.Equal(t, code, Code(fmt.Errorf("take: %w", form)), form)
			down := map[string]bool{"READONLY": true, "NOREPLICAS": true, "MISCONF": true, "BUSY": true, "NOAUTH": true, "MASTERDOWN": true, "WRONGPASS": true}[code] || form == "ERR max number of clients reached"
			require.Equal(t, down, Away(form), form)
		}
	}
	require.Empty(t, Code(errors.New("READONLY, but not from Redis")))
	require.Empty(t, Code(nil))
}
