package statement

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/outbox"
)

func TestParse(t *testing.T) {
	const all = outbox.Dialect(0) // stands for each of them
	for _, c := range []struct {
		dialect    outbox.Dialect
		text, want string
		names      []string
	}{
		{all, "DELETE FROM t", "DELETE FROM t", nil},
		{all, " DELETE FROM t ; -- done\n /* x */ ; ", "DELETE FROM t  -- done\n /* x */", nil},
		{outbox.Postgres, "UPDATE t SET a=:a, b=:b1_ WHERE a<:a", "UPDATE t SET a=$1, b=$2 WHERE a<$1", []string{"a", "b1_"}},
		{outbox.MySQL, "UPDATE t SET a=:a, b=:b1_ WHERE a<:a", "UPDATE t SET a=?, b=? WHERE a<?", []string{"a", "b1_", "a"}},
		{outbox.SQLite, "UPDATE t SET a=:a, b=:b1_ WHERE a<:a", "UPDATE t SET a=?, b=? WHERE a<?", []string{"a", "b1_", "a"}},
		{all, `DELETE FROM t WHERE a = ':x '' :y' AND b = ":x "" :y"`, `DELETE FROM t WHERE a = ':x '' :y' AND b = ":x "" :y"`, nil},
		{all, "DELETE -- :x ' \" \n FROM t /* :x ' ; */", "DELETE -- :x ' \" \n FROM t /* :x ' ; */", nil},
		{all, "UPDATE grün SET ö = 'ß :x' ", "UPDATE grün SET ö = 'ß :x'", nil},
		{outbox.Postgres, "SELECT 1::int, now()::date, :a::int8[]", "SELECT 1::int, now()::date, $1::int8[]", []string{"a"}},
		{outbox.Postgres, `SELECT 'a\', :a`, `SELECT 'a\', $1`, []string{"a"}},
		{outbox.Postgres, `SELECT E'a\':x', e'\\', :a, type'\', :b`, `SELECT E'a\':x', e'\\', $1, type'\', $2`, []string{"a", "b"}},
		{outbox.MySQL, `SELECT 'a\':x', "\":x", '\\', :a`, `SELECT 'a\':x', "\":x", '\\', ?`, []string{"a"}},
		{outbox.SQLite, `SELECT 'a\', :a`, `SELECT 'a\', ?`, []string{"a"}},
		{outbox.Postgres, "SELECT $$ :x ; $$, $t$ :x $$ $t$, :a", "SELECT $$ :x ; $$, $t$ :x $$ $t$, $1", []string{"a"}},
		{outbox.Postgres, "SELECT a$b$:c FROM t", "SELECT a$b$$1 FROM t", []string{"c"}},
		{outbox.Postgres, "SELECT /* a /* :x */ :y */ :a", "SELECT /* a /* :x */ :y */ $1", []string{"a"}},
		{outbox.Postgres, "SELECT a ? 'k', a #> b, a[1: n], a[1:2]", "SELECT a ? 'k', a #> b, a[1: n], a[1:2]", nil},
		{outbox.MySQL, "SELECT `:x `` :y`, @a := 1 # :x ' \n, :a", "SELECT `:x `` :y`, @a := 1 # :x ' \n, ?", []string{"a"}},
		{outbox.MySQL, "SELECT 1--:a", "SELECT 1--?", []string{"a"}},
		{outbox.SQLite, "SELECT [:x], `:y`, :a", "SELECT [:x], `:y`, ?", []string{"a"}},
		{all, "(SELECT 1)", "(SELECT 1)", nil},
	} {
		for _, d := range []outbox.Dialect{outbox.Postgres, outbox.MySQL, outbox.SQLite} {
			if c.dialect == all || c.dialect == d {
				q, err := parse(d, c.text)
				require.NoError(t, err, "%v: %s", d, c.text)
				require.Equal(t, query{c.want, c.names}, q, "%v: %s", d, c.text)
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	every := []outbox.Dialect{outbox.Postgres, outbox.MySQL, outbox.SQLite}
	for text, in := range map[string][]outbox.Dialect{
		"": every, " ; -- x\n": every, "/* x */": every, "DELETE 1; DELETE 2": every, "SELECT 1; :x": every, "DELETE 1;'x'": every,
		"commit": every, " /* x */ Begin": every, "ROLLBACK": every, "start transaction": every, "savepoint x": every, "end": every,
		"SELECT 'x": every, `SELECT "x`: every, "SELECT /* x": every, "SELECT `x": every[1:], "SELECT [x": every[2:],
		"SELECT $x$ :a $y$": every[:1], "SELECT /* /* */": every[:1], `SELECT E'\'`: every[:1], `SELECT '\'`: {outbox.MySQL},
		"SELECT ?": every[1:], "SELECT $1": every[:1], "SELECT a=$12": every[:1],
		"TRUNCATE t": {outbox.MySQL}, "alter table t": {outbox.MySQL}, "CREATE TABLE t": {outbox.MySQL}, "/*!40000 DROP TABLE t */ SELECT 1": {outbox.MySQL},
		"SELECT 1 /*M! , 2 */":           {outbox.MySQL},
		"EXECUTE IMMEDIATE 'TRUNCATE t'": {outbox.MySQL}, " /* x */ execute s": {outbox.MySQL},
	} {
		for _, d := range in {
			q, err := parse(d, text)
			require.Error(t, err, "%v: %s: %v", d, text, q)
		}
	}
	for _, d := range []outbox.Dialect{outbox.Postgres, outbox.SQLite} {
		_, err := parse(d, "CREATE TABLE t (a int)")
		require.NoError(t, err, "there it is part of the transaction")
	}
}

// No bytes make the parser panic or run forever, and what it takes has no name left outside quotes.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"SELECT :a", "SELECT 'x' -- :b", "$t$:a$t$ :b", "/* /* */ */ E'\\'' :c", "`a``:b` [c] \"d\"", ";;", "::a:b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, d := range []outbox.Dialect{outbox.Postgres, outbox.MySQL, outbox.SQLite} {
			q, err := parse(d, text)
			if err == nil && len(q.names) == 0 {
				again, err := parse(d, q.text)
				if err != nil || again.text != q.text || len(again.names) > 0 {
					t.Fatalf("%v: %q becomes %q, and then %q, %v", d, text, q.text, again.text, err)
				}
			}
		}
	})
}

// The work of the parser grows with the text, and not with its square: this text takes minutes if
// each string looks at all that is in front of it.
func TestParseIsLinear(t *testing.T) {
	text := "SELECT " + strings.Repeat("'',", 1<<18) + strings.Repeat("e'\\'',", 1<<16) + "$t$x$t$" + strings.Repeat("/**/", 1<<16)
	for _, d := range []outbox.Dialect{outbox.Postgres, outbox.MySQL, outbox.SQLite} {
		_, err := parse(d, text)
		if d == outbox.Postgres {
			require.NoError(t, err)
		}
	}
}
