package mail

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	htmltemplate "html/template"
	"io"
	"maps"
	"net"
	netmail "net/mail"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
	"unicode"
	"unicode/utf8"

	gomail "github.com/wneessen/go-mail"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/handlers/internal/incarnation"
)

// maxReason is how many bytes of the text of an error are kept.
const maxReason = 512

// A Handler sends mails. It is a [delayq.Handler] and safe for concurrent use. Each run makes a
// connection of its own.
type Handler struct {
	server    Server
	from      *netmail.Address
	templates map[string]*content
	timeout   time.Duration
	tls       *tls.Config
}

// A content is a [Template] that has been read.
type content struct {
	subject, text *template.Template // text is nil if there is none
	html          *htmltemplate.Template
}

// New returns a handler that sends mails from an address. It reads the files of the templates, and
// does not connect to the server. It returns [delayq.ErrInvalid] with every complaint.
func New(server Server, from string, templates map[string]Template, opts ...Option) (*Handler, error) {
	h := &Handler{server: server, timeout: 30 * time.Second, templates: make(map[string]*content), tls: &tls.Config{MinVersion: tls.VersionTLS12}}
	var errs []error
	for _, opt := range opts {
		if opt == nil {
			errs = append(errs, errors.New("nil option"))
			continue
		}
		errs = append(errs, opt(h))
	}
	switch {
	case server.Host == "":
		errs = append(errs, errors.New("Server: empty Host"))
	case server.Port < 0 || server.Port > 65535:
		errs = append(errs, fmt.Errorf("Server: Port %d: from 0 to 65535", server.Port))
	case server.Encryption < STARTTLS || server.Encryption > Plain:
		errs = append(errs, fmt.Errorf("Server: Encryption %d: must be STARTTLS, ImplicitTLS or Plain", server.Encryption))
	case server.Encryption == Plain && server.Username != "":
		errs = append(errs, errors.New("Server: a Username with Plain: the password would be sent unencrypted"))
	case (server.Username == "") != (server.Password == ""):
		errs = append(errs, errors.New("Server: Username and Password: set both or none"))
	}
	h.server.Port = cmp.Or(server.Port, map[Encryption]int{STARTTLS: 587, ImplicitTLS: 465, Plain: 25}[server.Encryption])
	h.tls.ServerName = cmp.Or(h.tls.ServerName, server.Host)
	var err error
	if h.from, err = address(from); err != nil {
		errs = append(errs, fmt.Errorf("from: %w", err))
	}
	if len(templates) == 0 {
		errs = append(errs, errors.New("no templates"))
	}
	for _, name := range slices.Sorted(maps.Keys(templates)) {
		c, err := load(templates[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("template %q: %w", name, err))
		}
		h.templates[name] = c
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("mail: %w: %w", delayq.ErrInvalid, err)
	}
	return h, nil
}

// load reads the files of a template.
func load(t Template) (*content, error) {
	const missing = "missingkey=error"
	c := &content{}
	var errs []error
	var err error
	if strings.TrimSpace(t.Subject) == "" {
		errs = append(errs, errors.New("empty Subject"))
	}
	if c.subject, err = template.New("subject").Option(missing).Parse(t.Subject); err != nil {
		errs = append(errs, err)
	}
	if t.Text == "" && t.HTML == "" {
		errs = append(errs, errors.New("neither Text nor HTML"))
	}
	if t.Text != "" {
		text, err := os.ReadFile(t.Text)
		if err == nil {
			c.text, err = template.New(t.Text).Option(missing).Parse(string(text))
		}
		errs = append(errs, err)
	}
	if t.HTML != "" {
		text, err := os.ReadFile(t.HTML)
		if err == nil {
			c.html, err = htmltemplate.New(t.HTML).Option(missing).Parse(string(text))
		}
		errs = append(errs, err)
	}
	return c, errors.Join(errs...)
}

// Handle sends the mail of a job: see the package documentation.
func (h *Handler) Handle(ctx context.Context, job *delayq.Job) error {
	message, err := h.message(job)
	if err != nil {
		return delayq.Permanent(fmt.Errorf("mail: payload of %d bytes: %w", len(job.Payload), err))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, h.timeout, fmt.Errorf("mail: no answer of %s within %v", h.server.Host, h.timeout))
	defer cancel()
	err = h.send(ctx, message)
	switch {
	case err == nil || message.IsDelivered(): // what goes wrong after that is not about the mail
		reply := message.ServerResponse()
		// It is short; a job without a run keeps none.
		_ = job.SetOutput([]byte(message.GetMessageID() + "\n" + reply[:min(len(reply), maxReason)]))
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("mail: %s: %w", h.server.Host, context.Cause(ctx))
	}
	reason := err.Error()
	short := fmt.Errorf("mail: %s: %s", h.server.Host, strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "\uFFFD"))
	if refused, ok := errors.AsType[*gomail.SendError](err); ok && refused.ErrorCode() >= 500 && refused.ErrorCode() < 600 {
		return delayq.Permanent(short)
	}
	return short
}

// send hands a mail to the server.
func (h *Handler) send(run context.Context, message *gomail.Msg) error {
	var conn net.Conn
	var stop func() bool
	defer func() {
		if conn != nil { // go-mail leaves it open after some errors
			stop()
			_ = conn.Close()
		}
	}()
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		own, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conn = own
		// go-mail looks at ctx only while it dials.
		stop = context.AfterFunc(run, func() { _ = own.Close() })
		if h.server.Encryption != ImplicitTLS {
			return own, nil
		}
		secure := tls.Client(own, h.tls)
		return secure, secure.HandshakeContext(ctx)
	}
	// A connection that has TLS already needs no STARTTLS, and a server does not offer it there.
	policy := map[Encryption]gomail.TLSPolicy{STARTTLS: gomail.TLSMandatory, ImplicitTLS: gomail.TLSOpportunistic, Plain: gomail.NoTLS}
	opts := []gomail.Option{
		gomail.WithPort(h.server.Port), gomail.WithTLSPolicy(policy[h.server.Encryption]), gomail.WithTLSConfig(h.tls),
		gomail.WithTimeout(h.timeout + time.Minute), // run ends first
		gomail.WithDialContextFunc(dial), gomail.WithoutNoop(),
	}
	if h.server.Username != "" {
		opts = append(opts, gomail.WithSMTPAuth(gomail.SMTPAuthAutoDiscover),
			gomail.WithUsername(h.server.Username), gomail.WithPassword(string(h.server.Password)))
	}
	client, err := gomail.NewClient(h.server.Host, opts...)
	if err != nil {
		return err
	}
	session, err := client.DialToSMTPClientWithContext(run)
	if err != nil {
		return fmt.Errorf("before the mail: %s", err) // no SendError, so its status does not count
	}
	if err := client.SendWithSMTPClient(session, message); err != nil {
		return err
	}
	return client.CloseWithSMTPClient(session)
}

// message makes the mail of a job.
func (h *Handler) message(job *delayq.Job) (*gomail.Msg, error) {
	r, err := read(job.Payload)
	if err != nil {
		return nil, err
	}
	c := h.templates[r.Template]
	if c == nil {
		return nil, fmt.Errorf("there is no template %q; expected one of %q", r.Template, slices.Sorted(maps.Keys(h.templates)))
	}
	subject, err := render(c.subject, r.Data)
	if err != nil {
		return nil, fmt.Errorf("template %q: subject: %w", r.Template, err)
	}
	if strings.ContainsFunc(subject, unicode.IsControl) {
		return nil, fmt.Errorf("template %q: subject has a line break or another control character; expected none", r.Template)
	}
	if n := utf8.RuneCountInString(subject); n > maxSubject {
		return nil, fmt.Errorf("template %q: subject of %d characters; expected at most %d", r.Template, n, maxSubject)
	}
	m := gomail.NewMsg()
	m.FromMailAddress(h.from)
	m.ToMailAddress(r.to...)
	m.CcMailAddress(r.cc...)
	m.BccMailAddress(r.bcc...)
	if r.replyTo != nil {
		m.ReplyToMailAddress(r.replyTo)
	}
	m.Subject(subject)
	_, domain, _ := strings.Cut(h.from.Address, "@")
	m.SetMessageIDWithValue(MessageID(job, domain))
	m.SetDateWithValue(time.Now())
	if c.text != nil {
		text, err := render(c.text, r.Data)
		if err != nil {
			return nil, fmt.Errorf("template %q: text: %w", r.Template, err)
		}
		m.SetBodyString(gomail.TypeTextPlain, text)
	}
	if c.html != nil {
		html, err := render(c.html, r.Data)
		if err != nil {
			return nil, fmt.Errorf("template %q: HTML: %w", r.Template, err)
		}
		if c.text == nil {
			m.SetBodyString(gomail.TypeTextHTML, html)
		} else {
			m.AddAlternativeString(gomail.TypeTextHTML, html)
		}
	}
	return m, nil
}

// MessageID returns the Message-ID of the mail of a job, without its angle brackets: 32 hexadecimal
// digits of a SHA-256 over the topic, the ID and the nonce of the job, an @, and the domain of the
// sender's address. It is the same in all attempts. A job that is enqueued later with the same ID
// has another one.
func MessageID(job *delayq.Job, domain string) string { return incarnation.Name(job) + "@" + domain }

// render executes a template. Its errors have no values of the data.
func render(t interface{ Execute(io.Writer, any) error }, data map[string]any) (string, error) {
	w := &part{}
	if err := t.Execute(w, data); err != nil {
		if w.full {
			return "", fmt.Errorf("more than %s bytes", strconv.Itoa(maxPart))
		}
		return "", err
	}
	return w.text.String(), nil
}

// A part collects what a template prints, up to a bound.
type part struct {
	text strings.Builder
	full bool
}

func (p *part) Write(b []byte) (int, error) {
	if p.full = p.full || p.text.Len()+len(b) > maxPart; p.full {
		return 0, io.ErrShortWrite
	}
	return p.text.Write(b)
}
