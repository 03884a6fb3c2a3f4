package main

import (
	"database/sql"
	_ "embed"
	"errors"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/emersion/go-smtp"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/handlers/command"
	"github.com/delayq/delayq/handlers/mail"
	"github.com/delayq/delayq/handlers/statement"
	"github.com/delayq/delayq/handlers/webhook"
	"github.com/delayq/delayq/outbox"
)

// The topics are named like those that "delayq task add" uses.
var topics = []string{"sql", "command", "webhook", "mail"}

// What may be executed. Somebody has looked at each of these and put it here. For delayqd worker
// they are in worker.yaml.
var (
	statements = map[string]string{"clean-zombies": "DELETE FROM sessions WHERE seen < 1000"}
	commands   = map[string][]string{
		"disk":   {"/bin/sh", "-c", "echo 3 GB are free"},
		"copy":   {"/bin/sh", "-c", "echo no space is left >&2; exit 3"},
		"export": {"/bin/sh", "-c", "echo exported"},
		"totals": {"python3", "-c", "print('total', 3 + 4)"},
	}
)

// report is the text of a mail.
//
//go:embed report.txt
var report []byte

// pingSecret signs the requests to the partner, who has it too.
const pingSecret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"

// A config is what the handlers may do.
type config struct {
	dir        string
	mail       mail.Server
	statements map[string]string
	commands   map[string][]string
	receivers  map[string]string // URLs
}

// serve sets the handlers of a server.
func (c *config) serve(server *delayq.Server, db *sql.DB) error {
	lists := make(map[string][]string)
	for name, text := range c.statements {
		lists[name] = []string{text}
	}
	cleaner, err := statement.New(db, outbox.SQLite, lists)
	if err != nil {
		return err
	}
	runners := make(map[string]*command.Handler)
	for name, argv := range c.commands {
		if runners[name], err = command.New(argv, command.Dir(c.dir)); err != nil {
			return err
		}
	}
	runner, err := command.NewNamed(runners)
	if err != nil {
		return err
	}
	text := filepath.Join(c.dir, "report.txt")
	if err := os.WriteFile(text, report, 0o600); err != nil {
		return err
	}
	sender, err := mail.New(c.mail, "Reports <reports@shop.example>", map[string]mail.Template{"report": {Subject: "Report", Text: text}})
	if err != nil {
		return err
	}
	secret, err := webhook.ParseSecret(pingSecret)
	if err != nil {
		return err
	}
	receivers := make(map[string]webhook.Receiver)
	for name, url := range c.receivers {
		receivers[name] = webhook.Receiver{URL: url, Secrets: []webhook.Secret{secret}}
	}
	hook, err := webhook.NewNamed(webhook.Named{Receivers: receivers},
		webhook.PlainHTTP(), webhook.Allow(netip.MustParsePrefix("127.0.0.0/8"))) // the partner of this example
	if err != nil {
		return err
	}
	return errors.Join(
		server.Handle("sql", cleaner, delayq.Defaults(delayq.Retry(3))),
		server.Handle("command", runner, delayq.Defaults(delayq.Retry(0))),
		server.Handle("webhook", hook, delayq.Defaults(delayq.Retry(9))),
		server.Handle("mail", sender, delayq.Defaults(delayq.Retry(10))),
	)
}

// A mailbox is a mail server that accepts everything.
type mailbox struct {
	*smtp.Server
	listener net.Listener
	got      chan string // recipients
}

func newMailbox() *mailbox {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	m := &mailbox{listener: listener, got: make(chan string, 10)}
	m.Server = smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return &session{m.got, ""}, nil }))
	m.Domain, m.ErrorLog = "localhost", log.New(io.Discard, "", 0)
	go func() { _ = m.Serve(listener) }()
	return m
}

func (m *mailbox) server() mail.Server {
	return mail.Server{Host: "127.0.0.1", Port: m.listener.Addr().(*net.TCPAddr).Port, Encryption: mail.Plain}
}

type session struct {
	got chan string
	to  string
}

func (s *session) Mail(string, *smtp.MailOptions) error { return nil }
func (s *session) Reset()                               {}
func (s *session) Logout() error                        { return nil }

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.to = to
	return nil
}

func (s *session) Data(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	s.got <- s.to
	return err
}
