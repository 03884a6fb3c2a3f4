package mail_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http/httptest"
	netmail "net/mail"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/handlers/mail"
)

const password = "hidden-word"

// An inbox is a mail server. It answers as its fields say.
type inbox struct {
	mail.Server
	roots *x509.CertPool
	auth  bool // is required

	mu                     sync.Mutex
	onMail, onRcpt, onData error
	onAuth                 error
	cutAt                  string // the connection is cut there: mail, data (in its middle) or end
	tries                  int    // MAIL commands
	from                   []string
	recipients             [][]string
	mails                  []string
	mechanisms             []string
	secure                 []bool
}

// serve starts a mail server.
func serve(t testing.TB, encryption mail.Encryption, opts ...func(*inbox)) *inbox {
	t.Helper()
	certified := httptest.NewTLSServer(nil) // for its certificate
	certified.Close()
	in := &inbox{roots: x509.NewCertPool(), auth: encryption != mail.Plain}
	for _, opt := range opts {
		opt(in)
	}
	in.roots.AddCert(certified.Certificate())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	in.Server = mail.Server{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Encryption: encryption}
	if in.auth {
		in.Server.Username, in.Server.Password = "shop", password
	}
	s := smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) {
		return &session{inbox: in, conn: c}, nil
	}))
	s.Domain, s.ErrorLog, s.EnableSMTPUTF8 = "localhost", log.New(io.Discard, "", 0), true
	config := &tls.Config{Certificates: certified.TLS.Certificates}
	switch encryption {
	case mail.STARTTLS:
		s.TLSConfig = config
	case mail.ImplicitTLS:
		l = tls.NewListener(l, config)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-ended
	})
	return in
}

type session struct {
	*inbox
	conn *smtp.Conn
	to   []string
	by   string
}

func (s *session) AuthMechanisms() []string { return []string{sasl.Plain} }

func (s *session) Auth(mech string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, username, word string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mechanisms = append(s.mechanisms, mech)
		if username != "shop" || word != password {
			return smtp.ErrAuthFailed
		}
		s.by = username
		return s.onAuth
	}), nil
}

func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	if s.auth && s.by == "" {
		return smtp.ErrAuthRequired
	}
	if s.cutAt == "mail" {
		_ = s.conn.Conn().Close()
	}
	s.from = append(s.from, from)
	_, secure := s.conn.TLSConnectionState()
	s.secure = append(s.secure, secure)
	return s.onMail
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.to = append(s.to, to)
	return s.onRcpt
}

func (s *session) Data(r io.Reader) error {
	s.mu.Lock()
	cutAt := s.cutAt
	s.mu.Unlock()
	if cutAt == "data" {
		_, err := io.CopyN(io.Discard, r, 100)
		_ = s.conn.Conn().Close()
		return errors.Join(err, errors.New("cut"))
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.onData != nil {
		return s.onData
	}
	s.mails, s.recipients = append(s.mails, string(text)), append(s.recipients, s.to)
	if cutAt == "end" {
		_ = s.conn.Conn().Close()
	}
	return nil
}

func (s *session) Reset() { s.to = nil }

func (s *session) Logout() error { return nil }

func (in *inbox) set(change func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	change()
}

// seen returns the inbox after its last change, because a session is on another goroutine.
func (in *inbox) seen() *inbox {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in
}

// parsed returns a mail that the server has accepted.
func (in *inbox) parsed(t testing.TB, n int) *netmail.Message {
	t.Helper()
	m, err := netmail.ReadMessage(strings.NewReader(in.seen().mails[n]))
	require.NoError(t, err)
	return m
}

// templates writes files and returns templates of them.
func templates(t testing.TB) map[string]mail.Template {
	t.Helper()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	return map[string]mail.Template{
		"welcome": {
			Subject: "Welcome, {{.name}}", Text: file("welcome.txt", "Hello {{.name}}, you have {{.n}} points.\n"),
			HTML: file("welcome.html", "<p>Hello {{.name}}</p>\n"),
		},
		"text":  {Subject: "{{.subject}}", Text: file("text.txt", "text\n")},
		"html":  {Subject: "html", HTML: file("only.html", "<b>{{.x}}</b>\n")},
		"large": {Subject: "large", Text: file("large.txt", `{{range .list}}`+strings.Repeat("x", 1<<19)+`{{end}}`)},
	}
}

func handler(t testing.TB, in *inbox, opts ...mail.Option) *mail.Handler {
	t.Helper()
	h, err := mail.New(in.Server, "Shop <shop@shop.example>", templates(t), append([]mail.Option{mail.TLS(&tls.Config{RootCAs: in.roots})}, opts...)...)
	require.NoError(t, err)
	return h
}

func job(t testing.TB, payload string) *delayq.Job {
	t.Helper()
	return delayqtest.NewJob(t, delayq.NewJob{Topic: "mail", ID: "welcome-7", Payload: []byte(payload)})
}

const welcome = `{"template": "welcome", "to": ["Änn <ann@customer.example>"], "data": {"name": "Ann <3", "n": 1000000}}`

// count returns how often a text is in the mails.
func (in *inbox) count(text string) int {
	return bytes.Count([]byte(strings.Join(in.seen().mails, "\n")), []byte(text))
}
