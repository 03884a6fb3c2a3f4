// Package statement has a handler for delayq that executes SQL statements, in PostgreSQL, MySQL,
// MariaDB or SQLite. The effect of each job happens once, however often it runs.
//
//	clean, err := statement.New(db, outbox.Postgres, map[string][]string{
//		"clean-zombies": {
//			`DELETE FROM sessions WHERE seen < now() - :days * interval '1 day'`,
//			`INSERT INTO cleanings (days) VALUES (:days)`,
//		},
//	})
//	server.Handle("sql", clean)
//
//	_, err = client.Enqueue(ctx, "sql", "zombies",
//		[]byte(`{"statement": "clean-zombies", "arguments": {"days": 3}}`))
//
// The statements are from the configuration alone. The payload names one entry of the map and has a
// value for each :name in it. Values are bound as parameters: none of them becomes SQL. All
// statements of an entry are executed in order, in one transaction, together with the record of an
// inbox ([github.com/delayq/delayq/outbox.Inbox]) that this job has done its work. So a job whose
// transaction was committed does nothing when it runs again. The tables of the outbox must exist:
// see [github.com/delayq/delayq/outbox.Outbox.Migrate]. Trim the inbox from time to time
// ([github.com/delayq/delayq/outbox.Inbox.Trim]).
//
// # Arguments
//
// The arguments are a JSON object with exactly the names of the statements. A value is a string, a
// number, a boolean or null. A whole number has at most 64 bits. For PostgreSQL all values are sent
// as text, which the server reads as the type of the parameter, so decimals are exact; where it
// cannot know the type, write a cast such as :days::int. For the others, a number with a point is a
// floating-point number; pass exact decimals as strings.
//
// # Names
//
// A :name begins with a letter or an underscore and has letters, digits and underscores. It is not
// looked for in strings, quoted names and comments. A :: is a cast. In a slice of PostgreSQL write
// a space before a column, as in a[1: n]. The placeholders of the driver (?, $1) are refused.
//
// # Outcomes
//
//	commit, or the work was done before     the job is done
//	a deadlock, a serialisation failure,    it is repeated at once, five times in all; then the
//	a busy SQLite                           job is retried after its backoff
//	a payload that does not fit             the job is buried
//	a missing table, column or right,       the job is buried
//	a syntax error, a value that does not
//	fit its column
//	anything else                           the job is retried after its backoff
//
// A table of the inbox that is missing is retried, because a migration may be on its way.
//
// With MySQL and MariaDB, statements that commit implicitly, such as ALTER or TRUNCATE, are
// refused, because their effect would not be in the transaction. Nor is the effect on a table whose
// engine has no transactions, such as MyISAM, and the handler cannot see that. Procedures must not
// commit.
//
// # Output
//
// The number of rows that each statement affected is attached to the run ([delayq.Job.SetOutput]).
package statement
