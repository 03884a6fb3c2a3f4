// Package handlers documents the ready-made handlers for delayq. Each is a [delayq.Handler] in a
// package of its own:
//
//   - [github.com/delayq/delayq/handlers/webhook] posts payloads to receivers.
//   - [github.com/delayq/delayq/handlers/command] runs commands.
//   - [github.com/delayq/delayq/handlers/statement] executes SQL statements.
//   - [github.com/delayq/delayq/handlers/mail] sends mails.
//
// What a handler may do stands in its configuration. A payload that does not fit its handler buries
// the job. docs/handlers.md describes all of them.
//
// [delayq.Handler]: https://pkg.go.dev/github.com/delayq/delayq#Handler
package handlers
