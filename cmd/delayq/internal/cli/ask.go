package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
)

const typedAbove = 1000 // jobs above which the name of the topic has to be typed

// confirm asks whether to act on n jobs of a topic, or on more unless the number is exact. With yes
// it does not ask.
func (a *app) confirm(ctx context.Context, yes bool, question, topic string, n int64, exact bool) error {
	if yes {
		return nil
	}
	if !a.in.terminal {
		return usage("%s\nthis is not a terminal, so nobody can be asked: give --yes", question)
	}
	allowed, hint := []string{"y", "Y", "yes"}, " [y/N] "
	if n > typedAbove || !exact {
		allowed, hint = []string{topic}, "\ntype the name of the topic to go on: "
	}
	fmt.Fprint(a.err, safe(question, true)+hint)
	answer, err := a.line(ctx)
	if err != nil {
		return err
	}
	if slices.Contains(allowed, strings.TrimSpace(answer)) {
		return nil
	}
	return &exitCode{exitError, "nothing was done"}
}

// line reads a line that the operator types.
func (a *app) line(ctx context.Context) (string, error) {
	type reading struct {
		text string
		err  error
	}
	done := make(chan reading, 1)
	go func() {
		text, err := bufio.NewReader(a.in).ReadString('\n')
		if err == io.EOF {
			err = nil
		}
		done <- reading{text, err}
	}()
	select {
	case r := <-done:
		return r.text, r.err
	case <-ctx.Done(): // the process ends, and the read with it
		return "", ctx.Err()
	}
}
