// Command release makes releases of delayq: it knows the modules of the repository, the versions
// that they require of each other, and what must hold before a tag is set.
//
// `make release` and `make next` call it. CONTRIBUTING.md says when.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

const usage = `usage: release COMMAND

  tidy [-diff]        go mod tidy of every module, with the siblings of this clone
  check [VERSION]     what must hold before the version is released
  prepare VERSION     check, set the versions, date the changelog, and print the tags to push
  next                begin the section of the next version in the changelog
  api                 compare the exported API with the last tag
  proxy DIR           write the modules of HEAD as a module proxy of files
  licenses [-write]   compare the list of licenses with the dependencies, or write it
  dist DIR            build the program, its Debian package and its list of modules
`

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run carries out a command of the clone that contains the working directory.
func run(out io.Writer, args []string) error {
	command, rest := "", []string(nil)
	if len(args) > 0 {
		command, rest = args[0], args[1:]
	}
	var least, most int
	switch command {
	case "tidy", "licenses", "check":
		most = 1
	case "prepare", "proxy", "dist":
		least, most = 1, 1
	case "next", "api":
	default:
		return fmt.Errorf("unknown command %q\n%s", command, usage)
	}
	if len(rest) < least || len(rest) > most {
		return fmt.Errorf("%s: wrong number of arguments: %s\n%s", command, strings.Join(rest, " "), usage)
	}
	repo, err := openRepo(".")
	if err != nil {
		return err
	}
	one := strings.Join(rest, "")
	switch command {
	case "tidy":
		return repo.tidy(out, one)
	case "check":
		return repo.check(out, one)
	case "prepare":
		return repo.prepare(out, one)
	case "next":
		return repo.next(out)
	case "api":
		return repo.compareAPI(out)
	case "proxy":
		return repo.writeProxy(one, "HEAD")
	case "licenses":
		return repo.licenses(out, one)
	default:
		return repo.dist(out, one)
	}
}
