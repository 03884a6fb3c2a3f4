package main

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestShop(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "run", ".")
	cmd.Env = append(cmd.Environ(), "DATABASE_URL=")
	text, err := cmd.Output()
	require.NoError(t, err, string(text))
	require.Equal(t, "order-1 is cancelled\norder-2 is paid\n", string(text))
}
