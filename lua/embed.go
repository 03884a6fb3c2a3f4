// Package lua embeds the scripts of delayq, one for each transition. The parts that they share are
// in prelude, and docs/protocol.md describes them.
package lua

import "embed"

// Files holds take.lua and the other scripts, and prelude/lease.lua and its other parts.
//
//go:embed *.lua prelude/*.lua
var Files embed.FS
