package cli

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"time"

	"github.com/delayq/delayq/outbox"
)

// deadPage is how many dead rows are read or changed at a time.
const deadPage = 500

// deadRows lists, revives or discards the rows that Redis has refused.
func (a *app) deadRows(ctx context.Context, box *outbox.Outbox, dialect outbox.Dialect, dsn string, f *relayFlags) error {
	key, chosen := f.revive, 0
	for _, is := range []bool{f.dead, f.revive != "", f.discard != ""} {
		if is {
			chosen++
		}
	}
	if chosen > 1 {
		return usage("--dead, --revive and --discard exclude each other")
	}
	if f.discard != "" {
		key = f.discard
	}
	seq := int64(0)
	if key != "" && key != "all" {
		var err error
		if seq, err = strconv.ParseInt(key, 10, 64); err != nil || seq < 1 {
			return usage("%q is not the key of a dead row, and not all; --dead lists them", key)
		}
	}
	db, err := openDatabase(dialect, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	change := box.Revive
	if f.discard != "" {
		change = box.Discard
	}
	switch {
	case f.dead:
		return ofDatabase(a.listDead(ctx, box, db), dsn)
	case seq > 0:
		n, err := changeDead(ctx, db, []int64{seq}, change)
		if err == nil && n == 0 {
			return &exitCode{exitNotFound, "no dead row has the key " + key}
		}
		if err == nil {
			a.say("1 row")
		}
		return ofDatabase(err, dsn)
	}
	// All keys first: a row that is revived and refused again has a later one.
	var keys []int64
	err = eachDead(ctx, box, db, func(d outbox.DeadRow) error {
		keys = append(keys, d.Seq)
		return nil
	})
	total := 0
	for page := range slices.Chunk(keys, deadPage) {
		if err != nil {
			break
		}
		var n int
		n, err = changeDead(ctx, db, page, change)
		total += n
	}
	a.say("%s", count(total, "row"))
	return ofDatabase(err, dsn)
}

// eachDead calls f for each dead row.
func eachDead(ctx context.Context, box *outbox.Outbox, db *sql.DB, f func(outbox.DeadRow) error) error {
	for after := int64(0); ; {
		list, err := box.Dead(ctx, db, after, deadPage)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, d := range list {
			after = d.Seq
			if err := f(d); err != nil {
				return err
			}
		}
	}
}

// listDead writes the dead rows.
func (a *app) listDead(ctx context.Context, box *outbox.Outbox, db *sql.DB) error {
	t := &table{a: a, heads: []string{"KEY", "CALL", "TOPIC", "ID", "MADE", "REASON"}, right: []bool{true, false, false, false, false, false}}
	err := eachDead(ctx, box, db, func(d outbox.DeadRow) error {
		return t.add([]string{strconv.FormatInt(d.Seq, 10), d.Call, d.Topic, idText(d.ID), d.Made.UTC().Format(time.RFC3339), d.Reason})
	})
	if err != nil {
		return err
	}
	return t.end()
}

// changeDead revives or discards rows in one transaction, and returns how many there were.
func changeDead(ctx context.Context, db *sql.DB, keys []int64, change func(context.Context, outbox.Execer, int64) (bool, error)) (n int, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // it does nothing after the commit
	for _, key := range keys {
		was, err := change(ctx, tx, key)
		if err != nil {
			return 0, err
		}
		if was {
			n++
		}
	}
	return n, tx.Commit()
}
