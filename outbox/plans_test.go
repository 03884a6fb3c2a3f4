package outbox_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// mostRead is how many rows a statement reads at most: 10,000, which MariaDB reads once more when
// it has found them. Stats does that three times.
func mostRead(statement string, large int) int {
	switch {
	case strings.HasPrefix(statement, "SELECT (SELECT COUNT(*)"):
		return 60_010
	case strings.HasPrefix(statement, "SELECT COUNT(*) FROM delayq_outbox_sent"): // of Resend: it tells how many there are
		return 2 * large
	}
	return 20_010
}

// A reading is what the statements of an outbox have read.
type reading struct {
	mu    sync.Mutex
	sites map[string]bool // lines of the package that have executed a statement
	read  map[string]int  // most rows, by the statement without its values
	plans map[string]string
}

// values are those that a statement has in its text.
var values = regexp.MustCompile(`'[^']*'|\b\d+\b`)

func shape(statement string) string {
	text := values.ReplaceAllString(strings.Join(strings.Fields(statement), " "), "?")
	return regexp.MustCompile(`\?(,\s*\?)+`).ReplaceAllString(regexp.MustCompile(`( WHEN \? THEN \?)+`).ReplaceAllString(text, " WHEN ? THEN ?"), "?, …")
}

// called notes which lines of the package execute a statement now.
func (r *reading) called() {
	callers := make([]uintptr, 50)
	frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers)])
	r.mu.Lock()
	defer r.mu.Unlock()
	for more := true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		if strings.HasPrefix(frame.Function, "github.com/delayq/delayq/outbox.") {
			r.sites[fmt.Sprintf("%s:%d", filepath.Base(frame.File), frame.Line)] = true
		}
	}
}

func (r *reading) note(statement string, rows int, plan string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := shape(statement)
	if most, found := r.read[key]; !found || rows > most {
		r.read[key], r.plans[key] = rows, plan
	}
}

// A plan is a node of that of PostgreSQL.
type plan struct {
	Node     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Filter   float64 `json:"Rows Removed by Filter"`
	Recheck  float64 `json:"Rows Removed by Index Recheck"`
	Plans    []plan
}

func (p *plan) rows() (n int, text string) {
	if strings.Contains(p.Node, "Scan") && (p.Relation != "" || p.Index != "") {
		n = int((p.Rows + p.Filter + p.Recheck) * p.Loops)
		text = fmt.Sprintf(" %s %s%s: %d;", p.Node, p.Relation, p.Index, n)
	}
	for i := range p.Plans {
		more, of := p.Plans[i].rows()
		n, text = n+more, text+of
	}
	return n, text
}

// explains makes a connection tell the plan of each statement after its execution.
func (r *reading) explains(t *testing.T, dsn string) string {
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	for name, value := range map[string]string{
		"session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "0", "auto_explain.log_analyze": "on",
		"auto_explain.log_timing": "off", "auto_explain.log_format": "json", "auto_explain.log_level": "notice",
	} {
		config.RuntimeParams[name] = value
	}
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		_, text, found := strings.Cut(n.Message, "plan:\n")
		if !found {
			return
		}
		var told struct {
			Text string `json:"Query Text"`
			Plan plan
		}
		if err := json.Unmarshal([]byte(text), &told); err != nil {
			t.Error(err)
			return
		}
		rows, nodes := told.Plan.rows()
		r.note(told.Text, rows, nodes)
	}
	name := stdlib.RegisterConnConfig(config)
	t.Cleanup(func() { stdlib.UnregisterConnConfig(name) })
	return name
}

// slow reads what MariaDB has logged about the statements.
func (r *reading) slow(w *crowd) {
	rows, err := w.db.Query("SELECT rows_examined, sql_text FROM mysql.slow_log WHERE db = DATABASE() AND sql_text LIKE '%delayq\\_outbox%' AND sql_text NOT LIKE '%/* test */%'")
	require.NoError(w, err)
	defer rows.Close()
	for rows.Next() {
		var n int
		var text string
		require.NoError(w, rows.Scan(&n, &text))
		r.note(text, n, "")
	}
	require.NoError(w, rows.Err())
}

// scans counts the rows of tables that SQLite reads from the first one to the last one.
func (r *reading) scans(w *crowd, statement string) {
	if strings.HasPrefix(statement, "CREATE") || !strings.Contains(statement, "delayq_outbox") {
		return
	}
	rows, err := w.db.Query("EXPLAIN QUERY PLAN "+statement, make([]any, strings.Count(statement, "?"))...)
	require.NoError(w, err, statement)
	defer rows.Close()
	n, nodes := 0, ""
	for rows.Next() {
		var id, parent, unused int
		var detail string
		require.NoError(w, rows.Scan(&id, &parent, &unused, &detail))
		nodes += " " + detail + ";"
		small := strings.Contains(statement, "WHERE 1 = 0") || strings.Contains(detail, "_shards") || strings.Contains(detail, "_resend") || strings.Contains(detail, "delayq_outbox") == false
		if strings.HasPrefix(detail, "SCAN") && !small && !regexp.MustCompile(`FROM delayq_outbox\w* (ORDER BY seq )?LIMIT`).MatchString(statement) {
			n += w.large
		}
		if strings.Contains(detail, "TEMP B-TREE FOR ORDER BY") && !strings.Contains(statement, "seq IN (") {
			n += w.large
		}
	}
	require.NoError(w, rows.Err())
	r.note(statement, n, nodes)
}

// watched opens the database of a world so that r learns what statements read.
func (w *crowd) watched(r *reading) (behind *sql.DB, heard func() []string) {
	driverName, dsn := w.fresh(w.T)
	switch w.dialect {
	case outbox.Postgres:
		dsn = r.explains(w.T, dsn)
	case outbox.MySQL:
		dsn += "?long_query_time=0"
	}
	db, err := sql.Open(driverName, dsn)
	require.NoError(w, err)
	w.Cleanup(func() { _ = db.Close() })
	w.db = db
	var mu sync.Mutex
	statements := make(map[string]string)
	life := sqltest.NewLife(1<<40, false)
	life.Hear = func(statement string) {
		r.called()
		mu.Lock()
		defer mu.Unlock()
		statements[shape(statement)] = statement
	}
	behind = life.Open(db.Driver(), dsn)
	w.Cleanup(func() { _ = behind.Close() })
	return behind, func() (list []string) {
		mu.Lock()
		defer mu.Unlock()
		for _, statement := range statements {
			list = append(list, statement)
		}
		return list
	}
}

// Each statement of the package reads a bounded number of rows, however large the tables are, and
// whatever the database believes about them. A statement that is executed nowhere here fails the
// test, so that a new one is tried too.
func TestNoStatementScans(t *testing.T) {
	var mu sync.Mutex
	covered, databases := make(map[string]bool), 0
	t.Cleanup(func() { // after all databases
		if databases < 3 || t.Failed() {
			return
		}
		for site, text := range executions(t) {
			if !covered[site] {
				t.Errorf("%s executes a statement that this test does not: %s", site, text)
			}
		}
	})
	eachWorld(t, func(one *world) {
		w := &crowd{world: one, large: 100_000}
		if testing.Short() {
			w.large = 22_000
		}
		r := &reading{sites: make(map[string]bool), read: make(map[string]int), plans: make(map[string]string)}
		behind, heard := w.watched(r)
		require.NoError(w, w.ob.Migrate(w.Context(), behind))
		tables := []string{"delayq_outbox", "delayq_outbox_later", "delayq_outbox_dead", "delayq_outbox_sent", "delayq_outbox_inbox"}
		for _, table := range tables {
			switch w.dialect {
			case outbox.Postgres:
				w.exec("ALTER TABLE " + table + " SET (autovacuum_enabled = false)")
				w.exec("ANALYZE " + table)
			case outbox.MySQL:
				w.exec("ALTER TABLE " + table + " STATS_AUTO_RECALC = 0")
				w.exec("ANALYZE TABLE " + table)
			}
		}
		w.fill("_later", "_dead", "_sent", "", "_inbox")
		if w.dialect == outbox.MySQL {
			w.exec("SET GLOBAL log_output = 'TABLE', GLOBAL slow_query_log = 1")
			defer w.exec("SET GLOBAL slow_query_log = 0")
		}
		w.everything(func(string) *sql.DB { return behind }, "without statistics")
		if w.dialect == outbox.Postgres || w.dialect == outbox.MySQL && !testing.Short() {
			for _, table := range tables {
				w.exec(map[outbox.Dialect]string{outbox.Postgres: "ANALYZE ", outbox.MySQL: "ANALYZE TABLE "}[w.dialect] + table)
			}
			w.exec("DELETE FROM delayq_outbox_dead")
			w.exec("DELETE FROM delayq_outbox_sent")
			w.fill("_dead", "_sent")
			w.everything(func(string) *sql.DB { return behind }, "with statistics")
		}
		switch w.dialect {
		case outbox.MySQL:
			r.slow(w)
		case outbox.SQLite:
			for _, statement := range heard() {
				r.scans(w, statement)
			}
		}
		r.judge(w)
		mu.Lock()
		defer mu.Unlock()
		for site := range r.sites {
			covered[site] = true
		}
		databases++
	})
}

// judge fails the test if a statement has read many rows.
func (r *reading) judge(w *crowd) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for statement, rows := range r.read {
		if strings.Contains(statement, "/* test */") {
			continue
		}
		w.Logf("%6d %s |%s", rows, statement, r.plans[statement])
		if rows > mostRead(statement, w.large) {
			w.Errorf("%d rows are read: %s:%s", rows, statement, r.plans[statement])
		}
	}
	require.Greater(w, len(r.read), 40)
}

// executions returns the lines of the package that execute statements on tables.
func executions(t *testing.T) map[string]string {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	sites := make(map[string]string)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			selected, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"ExecContext", "QueryContext", "QueryRowContext"}, selected.Sel.Name) {
				return true
			}
			if text, ok := call.Args[1].(*ast.BasicLit); ok && text.Value == `"ROLLBACK"` {
				return true
			}
			sites[fmt.Sprintf("%s:%d", file, set.Position(selected.Sel.Pos()).Line)] = selected.Sel.Name
			return true
		})
	}
	require.Greater(t, len(sites), 40)
	return sites
}
