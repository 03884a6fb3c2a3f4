package main

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
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

// A payment of an order that is not open is refused, and cancels nothing.
func TestPaymentOfAnOrderThatIsNotOpen(t *testing.T) {
	db, dialect, stop, err := openDatabase("sqlite")
	require.NoError(t, err)
	defer stop()
	defer db.Close()
	box, err := outbox.New(dialect)
	require.NoError(t, err)
	require.NoError(t, box.Migrate(t.Context(), db))
	_, err = db.Exec("CREATE TABLE orders (id VARCHAR(100) PRIMARY KEY, state VARCHAR(20) NOT NULL)")
	require.NoError(t, err)
	s := &shop{db: db, box: box}
	require.NoError(t, s.place(t.Context(), "order-1"))
	require.NoError(t, s.pay(t.Context(), "order-1"))
	require.ErrorContains(t, s.pay(t.Context(), "order-1"), `order "order-1" is not open`)
	stats, err := box.Stats(t.Context(), db)
	require.NoError(t, err)
	require.EqualValues(t, 2, stats.Rows, "a job, and one cancel")
}
