package webhook_test

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/handlers/webhook"
)

func named(t testing.TB, payload string) *delayq.Job {
	return delayqtest.NewJob(t, delayq.NewJob{Topic: "webhook", ID: "ping", Payload: []byte(payload)})
}

func TestNamedReceiver(t *testing.T) {
	billing, partner := listen(t, 200), listen(t, 200)
	secrets := []webhook.Secret{secret(t, vectorSecret)}
	// The names of the host lead to this machine.
	resolver := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }}
	h, err := webhook.NewNamed(webhook.Named{
		Receivers: map[string]webhook.Receiver{"billing": {URL: billing.URL, Secrets: secrets}},
		Hosts:     []string{"127.0.0.1", "*.partner.example"}, Secrets: []webhook.Secret{secret(t, otherSecret)},
	}, webhook.Allow(loopback), webhook.PlainHTTP(), webhook.Resolver(resolver))
	require.NoError(t, err)

	require.NoError(t, h.Handle(t.Context(), named(t, `{"receiver": "billing", "body": {"n":  1}}`)))
	require.NoError(t, h.Handle(t.Context(), named(t, `{"receiver": "billing"}`)))
	require.Equal(t, []string{`{"n":  1}`, "{}"}, billing.bodies)
	require.NoError(t, h.Handle(t.Context(), named(t, `{"url": "`+partner.URL+`/x", "body": "text"}`)))
	require.Equal(t, []string{`"text"`}, partner.bodies)
	id, stamp := partner.heads[0].Get("webhook-id"), unix(t, partner.heads[0].Get("webhook-timestamp"))
	require.Equal(t, secret(t, otherSecret).Sign(id, stamp, []byte(`"text"`)), partner.heads[0].Get("webhook-signature"))

	// A host below the pattern is looked up. The pattern itself is no host of it.
	_, retried := delayq.AsRetryIn(h.Handle(t.Context(), named(t, `{"url": "https://EU.partner.example/"}`)))
	require.True(t, retried)
	for payload, want := range map[string]string{
		``:                                   `ends too early; expected {"receiver"`,
		`{}`:                                 `needs either a receiver or a url`,
		`{"receiver": "a", "url": "b"}`:      `needs either a receiver or a url`,
		`{"receiver": "shop"}`:               `there is no receiver "shop"; expected one of ["billing"]`,
		`{"receiver": 1}`:                    `receiver is of the type number`,
		`{"receiver": "billing", "to": "x"}`: `unknown field "to"`,
		`{"receiver": "billing"} 1`:          `more than one value`,
		`{"url": "https://partner.example/token"}`:       `the host "partner.example" of the url is not allowed; expected one of ["127.0.0.1" "*.partner.example"]`,
		`{"url": "https://partner.example.evil/"}`:       `the host "partner.example.evil" of the url is not allowed`,
		`{"url": "https://evilpartner.example/"}`:        `the host "evilpartner.example" of the url is not allowed`,
		`{"url": "https://a.partner.example@evil.org/"}`: `must have no user`,
		`{"url": "ftp://a.partner.example/"}`:            `must be https`,
	} {
		err := h.Handle(t.Context(), named(t, payload))
		require.True(t, permanent(err), payload)
		require.ErrorContains(t, err, want, payload)
		require.NotContains(t, err.Error(), "token")
	}
}

// A zone of an address is any text. It is no name below the hosts, so the address is not reached,
// whatever stands in the zone and whichever addresses are allowed.
func TestAddressWithAZoneIsBelowNoHost(t *testing.T) {
	posted := 0
	for _, addr := range []string{"[::1]:0", "127.0.0.1:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Logf("%s: %v", addr, err)
			continue
		}
		server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { posted++ })}
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(l) }()
		_, port, err := net.SplitHostPort(l.Addr().String())
		require.NoError(t, err)
		h, err := webhook.NewNamed(webhook.Named{Hosts: []string{"*.shop.example"}, Secrets: []webhook.Secret{secret(t, vectorSecret)}},
			webhook.PlainHTTP(), webhook.Allow(netip.MustParsePrefix("::1/128"), loopback))
		require.NoError(t, err)
		for _, host := range []string{
			"[::1]", "[::1%25x.shop.example]", "[::1%25.shop.example]", "[::ffff:127.0.0.1%25x.shop.example]", "[2606:4700::1111%25x.shop.example]", "[fd00::1%25x.shop.example]", "127.0.0.1",
			"127.0.0.1%25.shop.example", "127.0.0.1%00.shop.example",
		} {
			err := h.Handle(t.Context(), named(t, `{"url": "http://`+host+":"+port+`/secret", "body": {}}`))
			require.True(t, permanent(err), "%s: %v", host, err)
		}
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-ended, http.ErrServerClosed)
		require.Zero(t, posted)
	}
}

// What an address is refused for is said, and not the address: whoever sees errors would learn the
// names of a network. Nor is the server of names.
func TestErrorsHaveNoAddressOfTheNetwork(t *testing.T) {
	secrets := []webhook.Secret{secret(t, vectorSecret)}
	dns, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dns.Close()) })
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", dns.LocalAddr().String())
	}}
	h, err := webhook.New(webhook.Receiver{URL: "https://10.2.0.7/x", Secrets: secrets})
	require.NoError(t, err)
	refused := h.Handle(t.Context(), job(t))
	require.ErrorIs(t, refused, webhook.ErrAddress)
	require.EqualError(t, refused, "webhook: 10.2.0.7: webhook: the address is not allowed: it is private; expected a public address, or one of Allow")

	h, err = webhook.New(webhook.Receiver{URL: "https://shop.example/x", Secrets: secrets}, webhook.Resolver(resolver))
	require.NoError(t, err)
	go func() { // answers that the name does not exist
		for buf := make([]byte, 512); ; {
			n, from, err := dns.ReadFrom(buf)
			if err != nil {
				return
			}
			buf[2], buf[3] = 0x81, 0x83
			_, _ = dns.WriteTo(buf[:n], from) // the test would end by its timeout
		}
	}()
	failed := h.Handle(t.Context(), job(t))
	require.ErrorContains(t, failed, "webhook: shop.example: the name could not be looked up: no such host")
	require.NotContains(t, failed.Error(), "127.0.0.1")
}

func TestNamedBodyOfAnotherType(t *testing.T) {
	r := listen(t, 200)
	h, err := webhook.NewNamed(webhook.Named{Receivers: map[string]webhook.Receiver{"r": {URL: r.URL, Secrets: []webhook.Secret{secret(t, vectorSecret)}}}},
		webhook.Allow(loopback), webhook.PlainHTTP(), webhook.ContentType("text/plain"))
	require.NoError(t, err)
	require.NoError(t, h.Handle(t.Context(), named(t, `{"receiver": "r", "body": "a\nb"}`)))
	require.NoError(t, h.Handle(t.Context(), named(t, `{"receiver": "r"}`)))
	require.Equal(t, []string{"a\nb", ""}, r.bodies)
	require.ErrorContains(t, h.Handle(t.Context(), named(t, `{"receiver": "r", "body": {}}`)), "the body is no string")
	require.ErrorContains(t, h.Handle(t.Context(), named(t, `{"url": "https://r.example"}`)), "no hosts are allowed")
}

func TestInvalidNamed(t *testing.T) {
	_, err := webhook.NewNamed(webhook.Named{})
	require.ErrorIs(t, err, delayq.ErrInvalid)
	require.ErrorContains(t, err, "neither Receivers nor Hosts")
	hosts := []string{"", "*.", "a:80", "A.example", "a/b", "**", "a.*", "u@a", "http://a"}
	_, err = webhook.NewNamed(webhook.Named{Receivers: map[string]webhook.Receiver{"r": {URL: "http://token.example/s3cret"}}, Hosts: hosts})
	require.ErrorIs(t, err, delayq.ErrInvalid)
	require.Equal(t, len(hosts), strings.Count(err.Error(), "must be a name such as"), err)
	require.ErrorContains(t, err, `receiver "r"`)
	require.ErrorContains(t, err, "secrets for the hosts: 0 secrets")
	require.NotContains(t, err.Error(), "s3cret")
}
