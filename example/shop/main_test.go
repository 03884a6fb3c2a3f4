package main

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/sqltest"
)

func TestShop(t *testing.T) {
	for database, url := range map[string]string{"postgres": "", "sqlite": "sqlite"} {
		t.Run(database, func(t *testing.T) {
			if database == "postgres" {
				_, stop, err := sqltest.Postgres()
				if errors.Is(err, sqltest.ErrMissing) && os.Getenv("CI") == "" {
					t.Skip(err)
				}
				require.NoError(t, err)
				stop()
			}
			cmd := exec.CommandContext(t.Context(), "go", "run", ".")
			cmd.Env = append(cmd.Environ(), "DATABASE_URL="+url)
			text, err := cmd.Output()
			require.NoError(t, err, string(text))
			require.Equal(t, "the database is "+database+"\norder-1 is cancelled\norder-2 is paid\n", string(text))
		})
	}
}
