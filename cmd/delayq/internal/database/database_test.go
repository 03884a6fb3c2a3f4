package database

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
)

// Whatever an address of a database is, it is read or refused, no refusal shows it, and an error of
// its driver is shown without its password.
func FuzzAddress(f *testing.F) {
	for _, seed := range []string{
		"postgres://shop:s3cret-pass@db:5432/shop", "postgresql://u@h/d?sslmode=require&password=s3cret-pass", "mysql://u:s3cret-pass@tcp(h:3306)/d",
		"mariadb://u:p%40ss@unix(/run/m)/d", "sqlite://x.db", "sqlite:///var/lib/shop.db?_txlock=immediate", "", "://", "oracle://u:p@h/d", "mysql://@/", "mysql://u:a/b@c:d@tcp(h:1)/d", "mysql://u:s3cret-pass@/d?x=/@", "host=h password=s3cret-pass",
	} {
		f.Add("", seed)
		f.Add("postgres", seed)
	}
	f.Fuzz(func(t *testing.T, dialect, address string) {
		_, dsn, err := Parse(dialect, address)
		if err != nil {
			_, dialects := ParseDialect("")
			require.Contains(t, []string{ErrAddress.Error(), dialects.Error()}, err.Error())
			return
		}
		_ = HasPassword(address)
		if c, err := mysql.ParseDSN(dsn); err == nil && c.Passwd != "" {
			require.Equal(t, c.Passwd, mysqlPassword(dsn))
		}
		for _, secret := range Secrets(dsn) {
			if len(secret) < 4 || strings.Contains("before between after", secret) || strings.Contains(secret, "…") {
				continue // what is around it, or stands instead, could have it
			}
			require.NotContains(t, Clean(errors.New("before "+secret+" between "+dsn+" after"), dsn), secret)
		}
	})
}

// Addresses with a password are known as such, so that they are not given on a command line.
func TestHasPassword(t *testing.T) {
	for address, want := range map[string]bool{
		"postgres://u:p@h/d": true, "postgres://u@h/d": false, "postgres://h/d?password=p": true, "host=h PASSWORD = p": true,
		"mysql://u:p@tcp(h:1)/d": true, "mysql://u@tcp(h:1)/d": false, "u:p@tcp(h:1)/d": true, "sqlite://a:b@c.db": false, "file:a:b@c": false,
	} {
		require.Equal(t, want, HasPassword(address), address)
	}
}

// A program without the driver of a database says which program has it, and not the address.
func TestDriverThatIsMissing(t *testing.T) {
	d, dsn, err := Parse("", "sqlite:///var/lib/shop.db")
	require.NoError(t, err)
	_, err = Open(d, dsn)
	require.ErrorContains(t, err, "the driver of sqlite: this is a part of delayqd")
	require.NotContains(t, err.Error(), "shop.db")
}
