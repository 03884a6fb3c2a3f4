package mail

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// A Password prints and logs as "…", so it cannot get into a log by accident.
type Password string

// String returns "…".
func (Password) String() string { return "…" }

// GoString returns "…".
func (Password) GoString() string { return "…" }

// LogValue returns "…".
func (Password) LogValue() slog.Value { return slog.StringValue("…") }

// MarshalText returns "…".
func (Password) MarshalText() ([]byte, error) { return []byte("…"), nil }

// Encryption is how a connection is encrypted.
type Encryption int

// The ways to encrypt. The server must support the one that is set.
const (
	STARTTLS    Encryption = iota // encrypted before anything else is sent
	ImplicitTLS                   // encrypted from the first byte
	Plain                         // not at all, for a server on the same machine
)

// A Server is what mails are handed to.
type Server struct {
	Host       string     // a name or an address; the certificate must be for it
	Port       int        // 0: 587, or 465 for ImplicitTLS, or 25 for Plain
	Encryption Encryption // default: STARTTLS
	Username   string     // empty: no AUTH; not allowed with Plain
	Password   Password
}

// A Template makes the content of mails. At least one of Text and HTML is set.
type Template struct {
	Subject string // the template itself
	Text    string // path of a file with a template of text/template
	HTML    string // path of a file with a template of html/template
}

// An Option configures a [Handler].
type Option func(*Handler) error

// Timeout is how long a run may take, from the lookup of the server to its last answer. Default: 30
// s. Range: 1 ms to 10 minutes.
func Timeout(d time.Duration) Option {
	return func(h *Handler) error {
		if h.timeout = d; d < time.Millisecond || d > 10*time.Minute {
			return fmt.Errorf("Timeout(%v): from 1ms to 10m0s", d)
		}
		return nil
	}
}

// TLS sets the configuration for the encryption, for example with the certificate authority of your
// own server. It is copied, and gets the name of the host. Default: that of Go, from TLS 1.2.
func TLS(config *tls.Config) Option {
	return func(h *Handler) error {
		if config == nil {
			return errors.New("TLS: nil configuration")
		}
		h.tls = config.Clone()
		return nil
	}
}
