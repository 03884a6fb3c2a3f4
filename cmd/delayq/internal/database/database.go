// Package database opens the databases that the command line is given the addresses of. No error
// has an address in it, because it may have a password.
package database

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/delayq/delayq/cmd/delayq/internal/part"
	"github.com/delayq/delayq/outbox"
)

// ErrAddress is the error of an address that does not say what kind of database it is of.
var ErrAddress = errors.New("the address of the database must begin with postgres://, mysql://, mariadb:// or sqlite://")

// ParseDialect reads a dialect: postgres, mysql, mariadb or sqlite.
func ParseDialect(name string) (outbox.Dialect, error) {
	dialect, err := outbox.ParseDialect(name)
	if err != nil { // the name may be a part of a password
		return 0, errors.New("the dialect must be postgres, mysql, mariadb or sqlite")
	}
	return dialect, nil
}

// Parse returns the dialect and what its driver takes. Without a dialect the address begins with
// its name and ://, and otherwise it is left as it is.
func Parse(dialect, address string) (outbox.Dialect, string, error) {
	if dialect != "" {
		d, err := ParseDialect(dialect)
		return d, address, err
	}
	name, rest, found := strings.Cut(address, "://")
	if !found {
		return 0, "", ErrAddress
	}
	switch name {
	case "postgresql":
		name = "postgres"
	case "mysql", "mariadb":
		address = rest
	case "sqlite":
		address = "file:" + rest
		if !strings.Contains(rest, "?") {
			address += "?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)"
		}
	}
	d, err := ParseDialect(name)
	if err != nil {
		return 0, "", ErrAddress
	}
	return d, address, nil
}

// Open opens a database. It does not connect.
func Open(dialect outbox.Dialect, address string) (*sql.DB, error) {
	driver := map[outbox.Dialect]string{outbox.Postgres: "pgx", outbox.MySQL: "mysql", outbox.SQLite: "sqlite"}[dialect]
	if !slices.Contains(sql.Drivers(), driver) {
		return nil, fmt.Errorf("the driver of %s: %w", dialect, part.ErrMissing)
	}
	db, err := sql.Open(driver, address)
	if err != nil { // some drivers show the address
		return nil, fmt.Errorf("the address of the database is not one of %s", dialect)
	}
	return db, nil
}

// HasPassword reports whether an address can have a password in it.
func HasPassword(address string) bool {
	lower := strings.ToLower(address)
	if strings.Contains(lower, "password=") || strings.Contains(lower, "password =") {
		return true
	}
	_, rest, found := strings.Cut(address, "://")
	if !found {
		rest = address
	}
	user, _, at := strings.Cut(rest, "@")
	return at && strings.Contains(user, ":") && !strings.HasPrefix(lower, "sqlite:") && !strings.HasPrefix(lower, "file:")
}

// Secrets returns what of an address must not be shown: all of it, and its password.
func Secrets(address string) []string {
	list := []string{address}
	if u, err := url.Parse(address); err == nil {
		if password, ok := u.User.Password(); ok {
			list = append(list, password)
		}
		return list
	}
	if password := mysqlPassword(address); password != "" {
		list = append(list, password)
	}
	return list
}

// mysqlPassword returns the password of user:password@protocol(host:port)/name. The driver looks
// for the last slash, and for the last @ before it, because a password can have both. delayq is
// built without the driver.
func mysqlPassword(address string) string {
	user := address[:max(strings.LastIndexByte(address, '/'), 0)]
	_, password, _ := strings.Cut(user[:max(strings.LastIndexByte(user, '@'), 0)], ":")
	return password
}

// Clean returns the text of an error without an address and its password.
func Clean(err error, address string) string {
	text := err.Error()
	for _, secret := range Secrets(address) {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "…")
		}
	}
	return text
}
