package outbox

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/sqltest"
)

// MySQL counts the rows that an UPDATE changes, and not those that it finds. A relay that extends
// its lease still has it, however little its database's clock has moved since it did that before.
func TestLeaseIsExtendedWithinAMillisecond(t *testing.T) {
	dsn, err := Servers[MySQL]()
	if errors.Is(err, sqltest.ErrMissing) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	require.NoError(t, err)
	admin, err := sql.Open("mysql", fmt.Sprintf(dsn, "mysql"))
	require.NoError(t, err)
	defer admin.Close()
	_, err = admin.Exec("CREATE DATABASE leases")
	require.NoError(t, err)
	defer func() {
		_, err := admin.Exec("DROP DATABASE leases")
		require.NoError(t, err)
	}()
	db, err := sql.Open("mysql", fmt.Sprintf(dsn, "leases"))
	require.NoError(t, err)
	defer db.Close()
	ob, err := New(MySQL)
	require.NoError(t, err)
	require.NoError(t, ob.Migrate(t.Context(), db))
	r := embedded.New()
	defer r.Close()
	rdb := r.Client()
	defer rdb.Close()
	h := &holding{Relay: ob.Relay(db, delayq.NewClient(rdb))}
	held, _, err := h.acquire(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	for _, ms := range []int{0, 0, 0, 1, 2, 2, 3, 5, 6, 8, 8, 9} {
		_, err := conn.ExecContext(t.Context(), fmt.Sprintf("SET timestamp = 1700000000.%03d", ms))
		require.NoError(t, err)
		held, err := h.extend(t.Context(), conn)
		require.NoError(t, err)
		require.True(t, held, "at %d ms", ms)
	}
}
