// Package contain limits a panic or runtime.Goexit in code of the user to that code. Goroutines are
// in launch.go, and what users give to go-redis and slog in wrap.go. A panic of a handler is caught
// in internal/serve/worker.go, and one of a hook in hooks.go of the root.
//
// It starts the goroutines of the library, and wraps what the user has given to go-redis and slog.
// It knows neither jobs nor Redis's commands, and decides nothing: who has started a goroutine is
// told how it has ended. All packages above it use it.
package contain
