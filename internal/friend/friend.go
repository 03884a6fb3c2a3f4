// Package friend lets packages and modules of this repository call functions of package delayq that
// programs cannot name: the outbox encodes calls of a client and sends them later, delayqtest makes
// jobs as a handler receives them, the command line compares and copies exactly what was given to
// jobs and schedules, and tests make a server wait for rings.
//
// The functions are methods of one unexported type of delayq, in the files of their subjects. Of
// returns its value with its type, so the compiler checks each call. The package imports nothing
// and has no state.
package friend

// Access, embedded in an exported type, leads to F, a type that only the package of that type can
// name. It has no size, and adds nothing to the exported API.
type Access[F any] struct{}

func (Access[F]) friends() (functions F) { return functions }

// A Giver is a type in which an Access to F is embedded.
type Giver[F any] interface{ friends() F }

// Of returns the functions to which a type gives access.
func Of[F any](x Giver[F]) F { return x.friends() }
