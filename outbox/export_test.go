package outbox

import "time"

// Patience sets how long Redis may refuse a topic until its rows are dead.
func Patience(d time.Duration) RelayOption {
	return func(o *relayOptions) error {
		o.patience = d
		return nil
	}
}

// Servers returns the address of the server of a dialect that the tests share. It has a %s for the
// name of a database.
var Servers = make(map[Dialect]func() (dsn string, err error))
