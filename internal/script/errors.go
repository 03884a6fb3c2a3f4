package script

import (
	"errors"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Codes of errors of Redis that decide what happens next.
const (
	CodeWrongType   = "WRONGTYPE"
	CodeNoPerm      = "NOPERM"
	codeNoScript    = "NOSCRIPT"
	codeNoAuth      = "NOAUTH"
	CodeCrossSlot   = "CROSSSLOT"
	CodeFull        = "OOM"
	CodePassed      = "PASSED"      // of lua/prelude/receipt.lua
	CodeUnconfirmed = "UNCONFIRMED" // of lua/prelude/receipt.lua
)

// awayCodes are the codes of errors that concern Redis as a whole and not one call: it loads its
// data, is a replica, has too few replicas, is part of a cluster that is down or moves its slots,
// is busy with a script, refuses writes because it cannot save its data, or rejects the password.
// UNCONFIRMED is ours: Redis has carried out an earlier copy of the call, and refuses the write
// after which replicas could confirm it.
var awayCodes = map[string]bool{
	"LOADING": true, "READONLY": true, "MASTERDOWN": true, "NOREPLICAS": true, "CLUSTERDOWN": true, "TRYAGAIN": true,
	"MOVED": true, "ASK": true, "BUSY": true, "MISCONF": true, "WRONGPASS": true, CodeUnconfirmed: true,
}

// tooManyClients is the error of a Redis at its maxclients. It has no code of its own.
const tooManyClients = "ERR max number of clients"

// inScript matches what Redis before 7.0 and miniredis put in front of the error of a command in a
// script, up to the last position that they name:
//
//	ERR Error running script (call to f_…): @user_script:12: @user_script: 12: -READONLY You …
//	ERR Error compiling script (new function): :12: WRONGTYPE Operation …
//	@user_script: 12: -NOREPLICAS Not enough …
//
// The last form is that of an error that a script catches and returns.
var inScript = regexp.MustCompile(
	`^(?:ERR Error (?:running|compiling) script \([^)]*\): )?(?:[@\w]*: ?\d+: )*-?`)

// noPermission matches how Redis says NOPERM inside of a script: the first form up to 7.0, the
// second one from 7.2 on.
var noPermission = regexp.MustCompile(`^(?:ERR )?(?:The user executing the script can't|ACL failure in script:) `)

// Code returns the code of an error of Redis, its first word, however the release at hand
// wraps the error of a command in a script. It returns "ERR" for an error without a code, and "" if
// err is not a reply of Redis.
func Code(err error) string {
	var said redis.Error
	if !errors.As(err, &said) {
		return ""
	}
	text := said.Error()
	text = text[len(inScript.FindString(text)):]
	if noPermission.MatchString(text) {
		return CodeNoPerm
	}
	text = strings.TrimPrefix(text, "ERR ") // Kvrocks and some proxies put it in front of a code
	code, _, _ := strings.Cut(text, " ")
	if code == "" || strings.ToUpper(code) != code {
		return "ERR"
	}
	return code
}

// isAway reports whether a reply of Redis concerns Redis as a whole.
func isAway(err error) bool {
	var said redis.Error
	return awayCodes[Code(err)] || errors.As(err, &said) && strings.HasPrefix(said.Error(), tooManyClients)
}

// Away reports whether err concerns Redis as a whole and not one call: no answer, loading, a
// replica, a cluster that is down, or a rejected password.
func Away(err error) bool {
	if !Answered(err) || isUndone(err) || Locked(err) {
		return true
	}
	return Code(err) == "" || isAway(err)
}
