// Package outbox commits jobs of delayq together with your own data, in PostgreSQL, MySQL, MariaDB
// or SQLite. [Outbox.Enqueue] writes a row in your transaction. A [Relay] sends the committed rows
// to Redis, in any process, and each row makes exactly one job. An [Inbox] does the opposite: the
// effect of a handler in your database happens once, however often the job runs.
//
//	ob, err := outbox.New(outbox.Postgres)
//	tx, err := db.BeginTx(ctx, nil)
//	_, err = tx.ExecContext(ctx, `INSERT INTO orders …`)
//	job, err := ob.Enqueue(ctx, tx, "order:cancel", "42", payload, delayq.ProcessIn(time.Hour))
//	err = tx.Commit() // now, and only now, the job will exist
//	ob.Nudge()
//
//	err = ob.Relay(db, client).Run(ctx) // as many relays as you like
//
// The package uses database/sql and imports no driver.
package outbox
