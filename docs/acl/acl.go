// Package acl holds the file delayq.acl, the users that delayq needs in Redis, for the command
// line.
package acl

import _ "embed"

// File is the file delayq.acl: a line for each user, for the prefix "delayq".
//
//go:embed delayq.acl
var File string
