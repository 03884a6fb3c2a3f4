package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBoardIsWritten(t *testing.T) {
	text, err := grafana()
	require.NoError(t, err)
	file, err := os.ReadFile("../grafana.json")
	require.NoError(t, err)
	require.Equal(t, string(text), string(file), "go run ./board > grafana.json")
}
