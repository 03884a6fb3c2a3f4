package main

import (
	"os/exec"
	"testing"
)

func TestOrms(t *testing.T) {
	text, err := exec.CommandContext(t.Context(), "go", "run", ".").CombinedOutput()
	const want = "order sqlx-1 has the job order:cancel sqlx-1\norder bun-1 has the job order:cancel bun-1\n" +
		"order gorm-1 has the job order:cancel gorm-1\norder ent-1 has the job order:cancel ent-1\n"
	if err != nil || string(text) != want {
		t.Errorf("%v\n%s\nwant:\n%s", err, text, want)
	}
}
