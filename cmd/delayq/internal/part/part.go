// Package part holds what the program delayqd has and delayq does not: the web page, mail templates
// and drivers of databases. They are most of the size of a program and of the time that it takes to
// build. Package all, below this one, adds them to the program that imports it.
package part

import (
	"errors"
	"net/http"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/handlers/mail"
)

// ErrMissing is the error of what this program does not have.
var ErrMissing = errors.New("this is a part of delayqd, and not of delayq")

// A Page is the web page of a queue.
type Page interface {
	http.Handler
	Close() // stops the bulk runs that it has begun
}

// A PageSetup is what a page is made with.
type PageSetup struct {
	Inspector *delayq.Inspector
	Client    *delayq.Client             // nil: the page shows, and does not act
	Actor     func(*http.Request) string // who it is
	Act       func(*http.Request) error  // nil: everybody may act
	Every     time.Duration              // how often pages are refreshed
	Badge     string                     // a word beside the prefix
	Language  string                     // empty: the browser decides
	Origins   []string                   // behind proxies that change Host
}

// Whole reports whether this program has all parts.
func Whole() bool { return NewPage != nil }

// NewPage makes the web page.
var NewPage func(*PageSetup) (Page, error)

// NewMail makes a handler that sends mails. Its templates keep the linker from leaving out methods
// that nobody calls.
var NewMail = func(mail.Server, string, map[string]mail.Template, ...mail.Option) (delayq.Handler, error) {
	return nil, ErrMissing
}
