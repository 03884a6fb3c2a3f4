// Package worker is the command worker: it reads the file that says what topics do, and serves them
// with the ready-made handlers. docs/worker.md describes both.
//
//   - read.go: YAML with the place of every mistake
//   - secret.go: values from files and from the environment
//   - file.go: the file as a whole, connections and databases
//   - topic.go, schedule.go: a topic and its schedules
//   - kinds.go, webhook.go, command_linux.go: what makes the handlers
//   - worker.go, serving.go: topics that are served, and change while they are
//   - sync.go: schedules in Redis, tables in databases
package worker
