// Command delayqd is delayq with what runs for ever and needs more of a program: the web page, the
// worker for tasks without code and the relay of an outbox, with the drivers of the databases.
// docs/cli.md describes it.
package main

import (
	"github.com/delayq/delayq/cmd/delayq/internal/cli"
	_ "github.com/delayq/delayq/cmd/delayq/internal/part/all"
)

func main() { cli.Main("delayqd") }
