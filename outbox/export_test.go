package outbox

import "time"

// Patience sets how long Redis may refuse a topic until its rows are dead.
func Patience(d time.Duration) RelayOption {
	return func(o *relayOptions) error {
		o.patience = d
		return nil
	}
}
