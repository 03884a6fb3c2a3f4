package outbox_test

import (
	"database/sql"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// A right is that of somebody to a table.
type right struct{ who, table, right string }

// documented returns the rights that docs/outbox.md has for a dialect.
func documented(t *testing.T, d outbox.Dialect) map[right]bool {
	_, table, found := strings.Cut(read(t, "docs/outbox.md"), "## Rights in the database\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n## ")
	rights := make(map[right]bool)
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[3], "`") {
			continue
		}
		for _, name := range strings.Split(cells[2], ",") {
			for _, one := range strings.Split(cells[3], ",") {
				one, only, _ := strings.Cut(strings.TrimSpace(one), " ")
				if only == "" || only == "(PostgreSQL)" && d == outbox.Postgres {
					rights[right{strings.TrimSpace(cells[1]), strings.Trim(name, " `"), strings.Trim(one, "`")}] = true
				}
			}
		}
	}
	require.Greater(t, len(rights), 20)
	return rights
}

// needs are how a statement shows which rights it needs.
var needs = map[string]*regexp.Regexp{
	"INSERT": regexp.MustCompile(`INSERT (?:IGNORE )?INTO (\w+)`),
	"DELETE": regexp.MustCompile(`DELETE FROM (\w+)|STRAIGHT_JOIN (\w+)`),
	"UPDATE": regexp.MustCompile(`^UPDATE (\w+)|FROM (\w+) [^()]*FOR UPDATE`),
	"SELECT": regexp.MustCompile(`FROM (\w+)|^UPDATE (\w+)|STRAIGHT_JOIN (\w+)`),
}

// needed returns the rights that a statement needs.
func needed(d outbox.Dialect, who, statement string) (rights []right) {
	for name, shows := range needs {
		for _, found := range shows.FindAllStringSubmatch(statement, -1) {
			for _, table := range found[1:] {
				if !strings.HasPrefix(table, "delayq_outbox") || name == "UPDATE" && d == outbox.MySQL && strings.Contains(statement, "FOR UPDATE") {
					continue
				}
				rights = append(rights, right{who, table, name})
			}
		}
	}
	return rights
}

// Users that have the rights of docs/outbox.md, and no others, can do everything, and each of these
// rights is needed.
func TestRightsInTheDocuments(t *testing.T) {
	eachWorld(t, func(one *world) {
		if one.dialect == outbox.SQLite {
			one.Skip("it has no users")
		}
		w := &crowd{world: one, large: 400}
		driverName, dsn := w.fresh(w.T)
		db, err := sql.Open(driverName, dsn)
		require.NoError(w, err)
		w.Cleanup(func() { _ = db.Close() })
		w.db = db
		require.NoError(w, w.ob.Migrate(w.Context(), db))
		w.fill("_later", "_dead", "_sent", "", "_inbox")

		rights := documented(w.T, w.dialect)
		users := make(map[string]*sql.DB)
		var mu sync.Mutex
		used := make(map[right]bool)
		for given := range rights {
			if users[given.who] == nil {
				users[given.who] = w.user(dsn, given.who, func(statement string) {
					mu.Lock()
					defer mu.Unlock()
					for _, one := range needed(w.dialect, given.who, statement) {
						used[one] = true
					}
				})
			}
			w.exec("GRANT " + given.right + " ON " + given.table + " TO " + w.account(given.who))
		}
		w.everything(func(who string) *sql.DB {
			if who == owner {
				return w.db
			}
			require.NotNil(w, users[who], who)
			return users[who]
		}, "with few rights")
		mu.Lock()
		defer mu.Unlock()
		for given := range rights {
			require.True(w, used[given], "%v is not needed", given)
		}
		for one := range used {
			require.True(w, rights[one], "%v is needed", one)
		}
	})
}

// A user that may create tables can call Migrate, also again, and no other can.
func TestRightToMigrate(t *testing.T) {
	require.Contains(t, strings.Join(strings.Fields(read(t, "docs/outbox.md")), " "),
		"`Migrate` needs `CREATE` on the schema of PostgreSQL, or on the database of MySQL and MariaDB")
	eachWorld(t, func(one *world) {
		grant := map[outbox.Dialect]string{outbox.Postgres: "GRANT CREATE ON SCHEMA public TO %s", outbox.MySQL: "GRANT CREATE ON *.* TO %s"}[one.dialect]
		if grant == "" {
			one.Skip("it has no users")
		}
		w := &crowd{world: one}
		driverName, dsn := w.fresh(w.T)
		db, err := sql.Open(driverName, dsn)
		require.NoError(w, err)
		w.Cleanup(func() { _ = db.Close() })
		w.db = db
		users := make(map[string]*sql.DB)
		for _, name := range []string{"owner", "other"} {
			users[name] = w.user(dsn, name, nil)
		}
		if w.dialect == outbox.MySQL {
			var name string
			require.NoError(w, db.QueryRow("SELECT DATABASE()").Scan(&name))
			grant = strings.Replace(grant, "*.*", name+".*", 1)
		}
		w.exec(fmt.Sprintf(grant, w.account("owner")))
		require.Error(w, w.ob.Migrate(w.Context(), users["other"]))
		for range 2 {
			require.NoError(w, w.ob.Migrate(w.Context(), users["owner"]))
		}
		require.Error(w, w.ob.Migrate(w.Context(), users["other"]))
		require.NoError(w, w.ob.Migrate(w.Context(), db))
	})
}

// account returns the name of a user of the database of the test.
func (w *crowd) account(who string) string {
	var database string
	require.NoError(w, w.db.QueryRow(map[outbox.Dialect]string{outbox.Postgres: "SELECT current_database()", outbox.MySQL: "SELECT DATABASE()"}[w.dialect]).Scan(&database))
	name := database + "_" + strings.ToLower(regexp.MustCompile(`\W`).ReplaceAllString(who, ""))
	if w.dialect == outbox.MySQL {
		return "'" + name + "'@'127.0.0.1'"
	}
	return name
}

// user makes a user without rights, and returns a database that it uses.
func (w *crowd) user(dsn, who string, hear func(statement string)) *sql.DB {
	account := w.account(who)
	name := strings.Trim(strings.Split(account, "@")[0], "'")
	if w.dialect == outbox.Postgres {
		w.exec("CREATE ROLE " + account + " LOGIN")
		dsn = strings.Replace(dsn, "postgres@", name+"@", 1)
	} else {
		w.exec("CREATE USER " + account)
		dsn = strings.Replace(dsn, "root@", name+"@", 1)
	}
	w.Cleanup(func() {
		for _, statement := range map[outbox.Dialect][]string{
			outbox.Postgres: {"DROP OWNED BY " + account, "DROP ROLE " + account}, outbox.MySQL: {"DROP USER " + account},
		}[w.dialect] {
			_, err := w.db.Exec(statement)
			require.NoError(w, err)
		}
	})
	life := sqltest.NewLife(1<<40, false)
	life.Hear = hear
	db := life.Open(w.db.Driver(), dsn)
	w.Cleanup(func() { _ = db.Close() })
	return db
}
