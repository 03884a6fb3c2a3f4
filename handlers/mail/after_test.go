package mail_test

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/handlers/mail"
)

// bare starts a mail server of bare commands that has accepted a mail with 250. after is its answer
// to whatever follows; without one it hangs up. It returns the number of mails, once it has ended.
func bare(t *testing.T, after string) (server mail.Server, mails func() int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n, ended := 0, make(chan struct{})
	serve := func(conn net.Conn) {
		defer conn.Close()
		say := func(line string) { fmt.Fprintf(conn, "%s\r\n", line) }
		say("220 localhost")
		accepted, data := false, false
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			switch command := strings.ToUpper(lines.Text()); {
			case data && lines.Text() != ".":
			case data:
				data, accepted = false, true
				n++
				say("250 2.0.0 Ok: queued as 4D2F")
			case accepted && after == "":
				return
			case accepted:
				say(after)
			case strings.HasPrefix(command, "EHLO"):
				say("250-localhost")
				say("250 8BITMIME")
			case command == "DATA":
				data = true
				say("354 go on")
			default:
				say("250 2.0.0 Ok")
			}
		}
	}
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn)
		}
	}()
	stop := func() {
		_ = l.Close() // it may be closed
		<-ended
	}
	t.Cleanup(stop)
	return mail.Server{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Encryption: mail.Plain}, func() int {
		stop()
		return n
	}
}

// A mail that the server has accepted is sent, whatever becomes of the connection after that. It is
// not sent again.
func TestMailIsSentOnceItWasAccepted(t *testing.T) {
	for _, after := range []string{"", "421 4.3.2 bye", "451 4.3.0 later", "500 5.5.1 what?", "nonsense"} {
		server, mails := bare(t, after)
		h, err := mail.New(server, "Shop <shop@shop.example>", templates(t))
		require.NoError(t, err)
		require.NoError(t, h.Handle(t.Context(), job(t, welcome)), "%q after the mail", after)
		require.Equal(t, 1, mails(), after)
	}
}
