package webhook_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/handlers/webhook"
)

// What the handler sends is accepted by a receiver that has one of its secrets.
func TestVerifyAcceptsWhatIsSent(t *testing.T) {
	r := listen(t, 200)
	one, other := secret(t, vectorSecret), secret(t, otherSecret)
	for _, secrets := range [][]webhook.Secret{{one}, {other, one}, {one, other}} {
		h, err := webhook.New(webhook.Receiver{URL: r.URL, Secrets: secrets}, webhook.PlainHTTP(), webhook.Allow(loopback))
		require.NoError(t, err)
		j := job(t)
		require.NoError(t, h.Handle(t.Context(), j))
		last := r.count() - 1
		for _, known := range [][]webhook.Secret{{one}, {one, other}, {other, one}} {
			id, err := webhook.Verify(r.heads[last], []byte(r.bodies[last]), known...)
			require.NoError(t, err)
			require.Equal(t, webhook.ID(j), id)
		}
	}
	_, err := webhook.Verify(r.heads[0], []byte(r.bodies[0]), other)
	require.ErrorIs(t, err, webhook.ErrSignature)
}

// Whatever is changed, missing, doubled or too old is refused, and no error has a secret or a
// signature.
func TestVerifyRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := secret(t, vectorSecret)
		body := []byte(`{"type":"order.paid"}`)
		now := time.Now()
		signed := func(id string, at time.Time, body []byte) http.Header {
			return http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {strconv.FormatInt(at.Unix(), 10)}, "Webhook-Signature": {s.Sign(id, at, body)}}
		}
		for name, change := range map[string]func(h http.Header){
			"another ID":               func(h http.Header) { h.Set("webhook-id", "msg_2") },
			"no ID":                    func(h http.Header) { h.Del("webhook-id") },
			"two IDs":                  func(h http.Header) { h.Add("webhook-id", "msg_1") },
			"another time":             func(h http.Header) { h.Set("webhook-timestamp", strconv.FormatInt(now.Unix()+1, 10)) },
			"no time":                  func(h http.Header) { h.Del("webhook-timestamp") },
			"a time that is no number": func(h http.Header) { h.Set("webhook-timestamp", "now") },
			"a time beyond an int64":   func(h http.Header) { h.Set("webhook-timestamp", "99999999999999999999") },
			"the greatest time":        func(h http.Header) { h.Set("webhook-timestamp", "9223372036854775807") },
			"the least time":           func(h http.Header) { h.Set("webhook-timestamp", "-9223372036854775808") },
			"a time with a plus":       func(h http.Header) { h.Set("webhook-timestamp", "+"+h.Get("webhook-timestamp")) },
			"no signature":             func(h http.Header) { h.Del("webhook-signature") },
			"an empty signature":       func(h http.Header) { h.Set("webhook-signature", "") },
			"half a signature":         func(h http.Header) { h.Set("webhook-signature", h.Get("webhook-signature")[:20]) },
			"another version":          func(h http.Header) { h.Set("webhook-signature", "v2"+h.Get("webhook-signature")[2:]) },
			"its version alone":        func(h http.Header) { h.Set("webhook-signature", "v1,") },
			"two headers of them":      func(h http.Header) { h.Add("webhook-signature", h.Get("webhook-signature")) },
			"far too many signatures": func(h http.Header) {
				h.Set("webhook-signature", strings.Repeat("v1,x ", 1000)+h.Get("webhook-signature"))
			},
		} {
			h := signed("msg_1", now, body)
			right := h.Get("webhook-signature")
			_, err := webhook.Verify(h, body, s)
			require.NoError(t, err, name)
			change(h)
			id, err := webhook.Verify(h, body, s)
			require.ErrorIs(t, err, webhook.ErrSignature, name)
			require.Empty(t, id, name)
			require.NotContains(t, err.Error(), right[3:20], name)
			require.NotContains(t, err.Error(), "MfKQ9r8", name)
		}
		_, err := webhook.Verify(signed("msg_1", now, body), append(body, ' '), s)
		require.ErrorIs(t, err, webhook.ErrSignature)

		// Of "a.1.2.x" nobody knows where the ID ends.
		_, err = webhook.Verify(signed("msg.1", now, body), body, s)
		require.ErrorIs(t, err, webhook.ErrSignature)

		// Five minutes, both ways.
		for _, at := range []time.Duration{-5 * time.Minute, 0, 5 * time.Minute} {
			_, err := webhook.Verify(signed("msg_1", now.Add(at), body), body, s)
			require.NoError(t, err, at)
		}
		for _, at := range []time.Duration{-5*time.Minute - time.Second, 5*time.Minute + time.Second} {
			_, err := webhook.Verify(signed("msg_1", now.Add(at), body), body, s)
			require.ErrorContains(t, err, "more than 5m0s away", at)
		}

		for _, secrets := range [][]webhook.Secret{nil, {{}}, {s, {}}} {
			_, err := webhook.Verify(signed("msg_1", now, body), body, secrets...)
			require.ErrorIs(t, err, delayq.ErrInvalid)
			require.NotErrorIs(t, err, webhook.ErrSignature)
		}
	})
}
