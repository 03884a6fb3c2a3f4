// Command delayq operates delayq from the command line: it looks into topics, says why a job is not
// running, and acts on one job or on all that match a filter. docs/cli.md describes it.
//
// Command delayqd, in the folder below this one, can do that too, and has what runs for ever: the
// web page, the worker and the relay. Both are made of internal/cli.
package main

import "github.com/delayq/delayq/cmd/delayq/internal/cli"

func main() { cli.Main("delayq") }
