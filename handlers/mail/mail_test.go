package mail_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"mime"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/handlers/mail"
)

// permanent reports whether err is a Permanent: its type is not exported.
func permanent(err error) bool { return fmt.Sprintf("%T", err) == "*delayq.permanentError" }

func TestMail(t *testing.T) {
	for _, encryption := range []mail.Encryption{mail.STARTTLS, mail.ImplicitTLS, mail.Plain} {
		in := serve(t, encryption)
		j := job(t, `{"template": "welcome", "to": ["Änn <ann@customer.example>"], "cc": ["b@c.example"], "bcc": ["secret@c.example"],
			"reply_to": "help@shop.example", "data": {"name": "Ann <3", "n": 1000000}}`)
		require.NoError(t, handler(t, in).Handle(t.Context(), j))
		require.Equal(t, []string{"shop@shop.example"}, in.seen().from)
		require.Equal(t, [][]string{{"ann@customer.example", "b@c.example", "secret@c.example"}}, in.seen().recipients)
		require.Equal(t, []bool{encryption != mail.Plain}, in.seen().secure)
		if encryption != mail.Plain {
			require.Equal(t, []string{"PLAIN"}, in.seen().mechanisms)
		}
		m := in.parsed(t, 0)
		subject, err := new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject"))
		require.NoError(t, err)
		require.Equal(t, "Welcome, Ann <3", subject)
		to, err := m.Header.AddressList("To")
		require.NoError(t, err)
		require.Equal(t, "Änn", to[0].Name)
		require.Equal(t, `"Shop" <shop@shop.example>`, m.Header.Get("From"))
		require.Contains(t, m.Header.Get("Reply-To"), "help@shop.example")
		require.Equal(t, "<"+mail.MessageID(j, "shop.example")+">", m.Header.Get("Message-ID"))
		require.True(t, strings.HasPrefix(string(j.Output()), m.Header.Get("Message-ID")+"\n2.0.0 OK"), "%q", j.Output())
		require.Empty(t, m.Header.Get("Bcc"))
		require.Zero(t, in.count("secret@"))
		require.Equal(t, 1, in.count("Hello Ann <3, you have 1000000 points."))
		require.Equal(t, 1, in.count("<p>Hello Ann &lt;3</p>"))
		require.Contains(t, m.Header.Get("Content-Type"), "multipart/alternative")
	}
}

func TestMessageIDIsThatOfTheIncarnation(t *testing.T) {
	in := serve(t, mail.STARTTLS)
	h := handler(t, in)
	j := job(t, welcome)
	require.NoError(t, h.Handle(t.Context(), j))
	require.NoError(t, h.Handle(t.Context(), delayqtest.NextRun(j)))
	require.NoError(t, h.Handle(t.Context(), job(t, welcome)))
	id := func(n int) string { return in.parsed(t, n).Header.Get("Message-ID") }
	require.Regexp(t, `^<[0-9a-f]{32}@shop\.example>$`, id(0))
	require.Equal(t, id(0), id(1))
	require.NotEqual(t, id(0), id(2))
}

func TestAnswersOfTheServer(t *testing.T) {
	for _, code := range []int{421, 450, 451, 452, 454, 500, 501, 521, 550, 552, 554} {
		bad := &smtp.SMTPError{Code: code, EnhancedCode: smtp.EnhancedCode{code / 100, 1, 1}, Message: "no " + fmt.Sprint(code)}
		for place, set := range map[string]func(*inbox){
			"MAIL": func(in *inbox) { in.onMail = bad }, "RCPT": func(in *inbox) { in.onRcpt = bad }, "DATA": func(in *inbox) { in.onData = bad },
		} {
			in := serve(t, mail.Plain, set)
			err := handler(t, in).Handle(t.Context(), job(t, welcome))
			require.Equal(t, code >= 500, permanent(err), "%s %d: %v", place, code, err)
			require.Regexp(t, fmt.Sprintf(`%d "?%d\.1\.1 no %d`, code, code/100, code), err.Error())
			require.Empty(t, in.seen().mails)
		}
	}
}

// A wrong password is not the fault of the mail.
func TestRefusedPassword(t *testing.T) {
	in := serve(t, mail.STARTTLS)
	in.Server.Password = "hidden-but-wrong"
	err := handler(t, in).Handle(t.Context(), job(t, welcome))
	require.ErrorContains(t, err, "535")
	require.False(t, permanent(err))
	require.NotContains(t, err.Error(), "hidden")
	require.Zero(t, in.seen().tries)
}

func TestCuts(t *testing.T) {
	for _, at := range []string{"mail", "data", "end"} {
		for _, encryption := range []mail.Encryption{mail.STARTTLS, mail.ImplicitTLS, mail.Plain} {
			in := serve(t, encryption, func(in *inbox) { in.cutAt = at })
			h := handler(t, in)
			j := job(t, welcome)
			err := h.Handle(t.Context(), j)
			require.Error(t, err, at)
			require.False(t, permanent(err), at)
			in.set(func() { in.cutAt = "" })
			require.NoError(t, h.Handle(t.Context(), delayqtest.NextRun(j)))
			ids := map[string]bool{}
			for n := range in.seen().mails {
				ids[in.parsed(t, n).Header.Get("Message-ID")] = true
			}
			require.Len(t, ids, 1, "a mail that arrives twice has one Message-ID")
			require.Len(t, in.seen().mails, map[string]int{"mail": 1, "data": 1, "end": 2}[at])
		}
	}
}

func TestServerThatIsAway(t *testing.T) {
	in := serve(t, mail.Plain)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	in.Server.Port = l.Addr().(*net.TCPAddr).Port
	hung := handler(t, in, mail.Timeout(100*time.Millisecond)) // it accepts and says nothing
	err = hung.Handle(t.Context(), job(t, welcome))
	require.ErrorContains(t, err, "within 100ms")
	require.False(t, permanent(err))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(delayq.ErrShutdown)
	require.ErrorIs(t, hung.Handle(ctx, job(t, welcome)), delayq.ErrShutdown)
	require.NoError(t, l.Close())
	err = handler(t, in).Handle(t.Context(), job(t, welcome))
	require.ErrorContains(t, err, "refused")
	require.False(t, permanent(err))
}

// A run that is cancelled while the server is silent in the middle of a mail ends at once.
func TestCancelledMail(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	release := make(chan struct{})
	in := serve(t, mail.Plain)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Write([]byte("220 hi\r\n"))
		buffer := make([]byte, 1000)
		_, _ = conn.Read(buffer) // EHLO
		_, _ = conn.Write([]byte("250 hi\r\n"))
		_, _ = conn.Read(buffer) // MAIL
		cancel(delayq.ErrCancelled)
		_, _ = conn.Read(buffer) // until the handler hangs up
		close(release)
	}()
	in.Server.Port = l.Addr().(*net.TCPAddr).Port
	require.ErrorIs(t, handler(t, in).Handle(ctx, job(t, welcome)), delayq.ErrCancelled)
	<-release
}

func TestEncryptionIsNotGivenUp(t *testing.T) {
	in := serve(t, mail.Plain)
	in.Server.Encryption = mail.STARTTLS
	err := handler(t, in).Handle(t.Context(), job(t, welcome))
	require.ErrorContains(t, err, "STARTTLS")
	require.False(t, permanent(err))
	require.Zero(t, in.seen().tries)

	in = serve(t, mail.STARTTLS)
	h, err := mail.New(in.Server, "shop@shop.example", templates(t)) // it does not know the authority
	require.NoError(t, err)
	require.ErrorContains(t, h.Handle(t.Context(), job(t, welcome)), "certificate")
	require.Empty(t, in.seen().mechanisms, "no password was sent")
}

func TestPayloadsThatDoNotFit(t *testing.T) {
	in := serve(t, mail.Plain)
	h := handler(t, in)
	to := func(a string) string {
		text, err := json.Marshal(map[string]any{"template": "text", "to": []string{a}, "data": map[string]any{"subject": "s"}})
		require.NoError(t, err)
		return string(text)
	}
	subject := func(s string) string {
		text, err := json.Marshal(map[string]any{"template": "text", "to": []string{"a@b.example"}, "data": map[string]any{"subject": s}})
		require.NoError(t, err)
		return string(text)
	}
	payloads := map[string]string{
		"": "ends too early", `{"to": hidden}`: "byte 8: not JSON", `{"to": "hidden"}`: "to is of the type string", `{"sender": "hidden"}`: `unknown field "sender"`,
		`{} {}`: "more than one value", `{"template": "text"}`: "0 recipients", `{"template": "none", "to": ["a@b.example"]}`: `there is no template "none"; expected one of`,
		`{"template": "text", "to": [` + strings.Repeat(`"a@b.example",`, 50) + `"a@b.example"]}`:    "51 recipients",
		`{"template": "text", "to": ["a@b.example"]}`:                                                "subject",
		`{"template": "html", "to": ["a@b.example"], "data": {"y": "hidden"}}`:                       `no entry for key "x"`,
		`{"template": "text", "to": ["a@b.example"], "reply_to": "hidden", "data": {"subject": ""}}`: "reply_to: not an address",
		`{"template": "large", "to": ["a@b.example"], "data": {"list": [1, 2, 3]}}`:                  "more than 1048576 bytes",
		subject("s\r\nBcc: hidden@c.example"):                                                        "line break", subject("s\nhidden"): "line break", subject("s\x00"): "control", subject("s\u0085hidden"): "control",
		subject(strings.Repeat("ü", 501)): "501 characters",
	}
	for _, bad := range []string{
		"hidden", "hidden@", "@hidden.example", "a@b.example, hidden@c.example", "<a@b.example>\r\nBcc: hidden@c.example", "a@b.example\n", "a\r@b.example",
		"Name\r\nBcc: hidden@c.example <a@b.example>", `"hidden> SIZE=1"@b.example`, `"a b"@b.example`, "a@[127.0.0.1]", "a@b.example>\x00", "a@b\u0085.example",
		"=?utf-8?q?x=0D=0ABcc:_hidden@c.example?= <a@b.example>", strings.Repeat("a", 400) + "@b.example",
	} {
		payloads[to(bad)] = "address 1 of to: "
	}
	for payload, want := range payloads {
		err := h.Handle(t.Context(), job(t, payload))
		require.True(t, permanent(err), "%s: %v", payload, err)
		require.ErrorContains(t, err, want, payload)
		require.NotContains(t, err.Error(), "hidden")
	}
	require.Zero(t, in.seen().tries)
}

// What data has in a body stays there.
func TestDataIsNoHeaderAndNoCommand(t *testing.T) {
	in := serve(t, mail.Plain)
	h := handler(t, in)
	evil := "x\r\n.\r\nMAIL FROM:<evil@c.example>\r\n\r\nBcc: evil@c.example"
	payload, err := json.Marshal(map[string]any{"template": "html", "to": []string{"a@b.example"}, "data": map[string]any{"x": evil}})
	require.NoError(t, err)
	require.NoError(t, h.Handle(t.Context(), job(t, string(payload))))
	require.Equal(t, 1, in.seen().tries)
	require.Equal(t, [][]string{{"a@b.example"}}, in.seen().recipients)
	require.Empty(t, in.parsed(t, 0).Header.Get("Bcc"))
	require.Contains(t, in.parsed(t, 0).Header.Get("Content-Type"), "text/html")
}

func TestPasswordIsNowhere(t *testing.T) {
	s := mail.Server{Host: "h", Username: "u", Password: password}
	text, err := json.Marshal(s)
	require.NoError(t, err)
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "password", s.Password, "server", s)
	all := fmt.Sprintf("%v %+v %#v %q %x", s, s, s, s.Password, s.Password) + string(text) + log.String()
	s.Encryption = mail.Plain
	_, err = mail.New(s, "hidden", nil)
	require.Error(t, err)
	require.NotContains(t, all+err.Error(), "hidden")
}

func TestInvalidConfigurations(t *testing.T) {
	fine := mail.Server{Host: "h"}
	_, err := mail.New(fine, "shop@shop.example", templates(t))
	require.NoError(t, err)
	bad := filepath.Join(t.TempDir(), "bad")
	require.NoError(t, os.WriteFile(bad, []byte("{{"), 0o600))
	for want, server := range map[string]mail.Server{
		"empty Host": {}, "Port 70000": {Host: "h", Port: 70000}, "Encryption 9": {Host: "h", Encryption: 9},
		"with Plain": {Host: "h", Encryption: mail.Plain, Username: "u", Password: "p"}, "set both": {Host: "h", Username: "u"}, "or none": {Host: "h", Password: "p"},
	} {
		_, err := mail.New(server, "Shop", map[string]mail.Template{
			"a": {}, "b": {Subject: "{{", Text: bad, HTML: bad}, "c": {Subject: "s", Text: "/no/such/file", HTML: "/no/such/file"},
		}, nil, mail.Timeout(0), mail.TLS(nil))
		require.ErrorIs(t, err, delayq.ErrInvalid)
		for _, text := range []string{
			want, "from: not an address", "nil option", "Timeout(0s)", "TLS: nil", `template "a": empty Subject`, "neither Text nor HTML",
			`template "b": template: subject`, bad, `template "c": open /no/such/file`,
		} {
			require.ErrorContains(t, err, text)
		}
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	_, err = mail.New(fine, "shop@shop.example", nil)
	require.ErrorContains(t, err, "no templates")
}
