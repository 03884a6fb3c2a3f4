// Package contain keeps a panic, or the end of a goroutine, in code of the user from ending more
// than that code.
//
// It starts the goroutines of the library, and wraps what the user has given to go-redis and slog.
// It knows neither jobs nor Redis's commands, and decides nothing: who has started a goroutine is
// told how it has ended. All packages above it use it.
package contain
