package webhook_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/handlers/webhook"
)

// permanent reports whether err is a Permanent: its type is not exported.
func permanent(err error) bool { return fmt.Sprintf("%T", err) == "*delayq.permanentError" }

func held(err error) bool { return strings.Contains(fmt.Sprint(err), "hold the key") }

func TestSignatureIsThatOfTheSpecification(t *testing.T) {
	got := secret(t, vectorSecret).Sign("msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	require.Equal(t, vectorSignature, got)
}

func TestRequest(t *testing.T) {
	r := listen(t, http.StatusNoContent)
	h, err := webhook.New(webhook.Receiver{URL: r.URL + "/hooks?token=t", Secrets: []webhook.Secret{secret(t, vectorSecret), secret(t, otherSecret)}},
		webhook.Allow(loopback), webhook.PlainHTTP())
	require.NoError(t, err)
	j := job(t)
	require.NoError(t, h.Handle(t.Context(), j))
	require.NoError(t, h.Handle(t.Context(), delayqtest.NextRun(j)))
	require.NoError(t, h.Handle(t.Context(), job(t))) // another incarnation of the same ID

	require.Equal(t, "204 No Content", string(j.Output()))
	require.Equal(t, `{"type":"order.paid"}`, r.bodies[0])
	head := r.heads[0]
	require.Equal(t, "application/json", head.Get("Content-Type"))
	id, stamp := head.Get("webhook-id"), head.Get("webhook-timestamp")
	require.Equal(t, webhook.ID(j), id)
	require.Regexp(t, `^msg_[0-9a-f]{32}$`, id)
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	require.NoError(t, err)
	require.InDelta(t, time.Now().Unix(), seconds, 60)
	require.Equal(t, []string{
		secret(t, vectorSecret).Sign(id, time.Unix(seconds, 0), j.Payload), secret(t, otherSecret).Sign(id, time.Unix(seconds, 0), j.Payload),
	}, strings.Fields(head.Get("webhook-signature")))
	require.Equal(t, id, r.heads[1].Get("webhook-id"))
	require.NotEqual(t, id, r.heads[2].Get("webhook-id"))
}

func TestEachStatus(t *testing.T) {
	for status := 200; status < 600; status++ {
		r := listen(t, status)
		err := hook(t, r.URL).Handle(t.Context(), job(t))
		switch d, retry := delayq.AsRetryIn(err); {
		case status < 300:
			require.NoError(t, err, status)
		case status == http.StatusGone:
			require.True(t, permanent(err), "%d: %v", status, err)
		default:
			require.True(t, retry, "%d: %v", status, err)
			require.GreaterOrEqual(t, d, 5*time.Second, status)
			require.LessOrEqual(t, d, 6*time.Second, status)
		}
		if err != nil {
			var bad *webhook.StatusError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, webhook.StatusError{Host: strings.TrimPrefix(r.URL, "http://"), Status: status}, *bad)
		}
		require.Equal(t, 1, r.count(), status)
		r.Close()
	}
}

func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		status int
		value  string
		held   string // in the text of the error; empty: not held
	}{
		{429, "30", "for 30s"}, {503, "30", "for 30s"}, {503, "0", "for 1s"}, {429, "99999999", "for 24h0m0s"},
		{429, "Fri, 01 Jan 2010 00:00:00 GMT", "for 1s"}, {503, "Fri, 01 Jan 2100 00:00:00 GMT", "for 24h0m0s"},
		{429, "", ""}, {429, "soon", ""}, {503, "-1", ""}, {503, "1e9", ""}, {429, "+5", ""}, {429, "5 ", "for 5s"}, {429, "5s", ""},
		// What is too long for a number is very long, and not nothing.
		{429, "2147483647", "for 24h0m0s"}, {429, "2147483648", "for 24h0m0s"}, {429, "4294967296", "for 24h0m0s"}, {429, "9223372036", "for 24h0m0s"},
		{503, "9223372037", "for 24h0m0s"}, {429, "9223372036854775808", "for 24h0m0s"}, {429, "99999999999999999999", "for 24h0m0s"},
		{503, strings.Repeat("9", 1000), "for 24h0m0s"}, {429, "00000000000000000000000000000007", "for 7s"},
		{500, "30", ""}, {404, "30", ""}, {302, "30", ""},
	} {
		err := hook(t, listen(t, c.status, "Retry-After", c.value).URL).Handle(t.Context(), job(t))
		_, retry := delayq.AsRetryIn(err)
		require.Equal(t, c.held == "", retry, "%v: %v", c, err)
		require.Equal(t, c.held != "", held(err), "%v: %v", c, err)
		require.Contains(t, err.Error(), c.held)
	}
}

func TestHoldsEnd(t *testing.T) {
	r := listen(t, 429, "Retry-After", "30")
	h := hook(t, r.URL)
	j := job(t)
	j.StartedAt = j.Due.Add(72*time.Hour - time.Second)
	require.True(t, held(h.Handle(t.Context(), j)))
	j.StartedAt = j.Due.Add(72 * time.Hour)
	d, retry := delayq.AsRetryIn(h.Handle(t.Context(), j))
	require.True(t, retry)
	require.Equal(t, 30*time.Second, d)
	_, retry = delayq.AsRetryIn(hook(t, r.URL, webhook.Patience(0)).Handle(t.Context(), job(t)))
	require.True(t, retry)
	require.Contains(t, hook(t, r.URL, webhook.MostHold(time.Second)).Handle(t.Context(), job(t)).Error(), "for 1s")
}

func TestDelaysGrow(t *testing.T) {
	h := hook(t, listen(t, 500).URL)
	want := []time.Duration{
		5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
		10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour, 24 * time.Hour,
	}
	for _, opts := range [][]delayq.JobOption{nil, {delayq.Retry(20)}} {
		j := job(t, opts...)
		for _, least := range want {
			d, retry := delayq.AsRetryIn(h.Handle(t.Context(), j))
			require.True(t, retry)
			require.GreaterOrEqual(t, d, least)
			require.LessOrEqual(t, d, least+least/5)
			j = delayqtest.NextRun(j)
		}
	}
	d, _ := delayq.AsRetryIn(hook(t, listen(t, 500).URL, webhook.Delays(time.Hour)).Handle(t.Context(), job(t)))
	require.GreaterOrEqual(t, d, time.Hour)
}

// What a receiver answers decides in a real queue too: a held host delays no other.
func TestHeldHostDelaysNoOther(t *testing.T) {
	q := delayqtest.Start(t)
	q.Unfreeze()
	busy, gone, fine := listen(t, 503, "Retry-After", "0"), listen(t, 410), listen(t, 200)
	urls := map[string]string{"busy": busy.URL, "gone": gone.URL, "fine": fine.URL}
	h, err := webhook.NewLookup(func(_ context.Context, j *delayq.Job) (webhook.Receiver, error) {
		return webhook.Receiver{URL: urls[j.Headers["to"]], Secrets: []webhook.Secret{secret(t, vectorSecret)}}, nil
	}, webhook.Allow(loopback), webhook.PlainHTTP(), webhook.HoldGone(q.Client, time.Hour))
	require.NoError(t, err)
	send := func(to, id string) {
		_, err := q.Client.Enqueue(t.Context(), "hooks", id, []byte(`{}`), delayq.Header("to", to), webhook.Key(urls[to]))
		require.NoError(t, err)
	}
	reach := func(r *receiver, n int) {
		require.Eventually(t, func() bool { return r.count() >= n }, time.Minute, time.Millisecond)
	}
	q.Serve(func(s *delayq.Server) { s.Handle("hooks", h, delayq.Concurrency(1)) })
	send("gone", "g1")
	require.Eventually(t, func() bool {
		info, err := q.Client.Get(t.Context(), "hooks", "g1")
		return err == nil && info.State == delayq.StateDead
	}, time.Minute, time.Millisecond)
	send("gone", "g2")
	send("busy", "b1")
	send("busy", "b2")
	for i := range 10 {
		send("fine", fmt.Sprint("f", i))
	}
	reach(fine, 10)
	reach(busy, 3) // after the hold of a second
	info, err := q.Client.Get(t.Context(), "hooks", "b1")
	require.NoError(t, err)
	require.Equal(t, 1, info.Attempt, "a hold uses up no attempt")
	require.Empty(t, info.Errors)
	require.Equal(t, 1, gone.count(), "its key is held")
	q.AssertState("hooks", "g2", delayq.StateReady)
	err = q.Client.ResumeKey(t.Context(), "hooks", "127.0.0.1:"+gone.URL[len("http://127.0.0.1:"):])
	require.NoError(t, err)
	reach(gone, 2)
}

func TestGoneWithoutARightSaysSo(t *testing.T) {
	q := delayqtest.Start(t)
	r := listen(t, 410)
	h := hook(t, r.URL, webhook.HoldGone(q.Client, time.Hour))
	require.True(t, permanent(h.Handle(t.Context(), job(t))), "a job without a key")
	j := job(t, webhook.Key(r.URL))
	j.Topic = "" // Redis is not even asked
	err := h.Handle(t.Context(), j)
	require.True(t, permanent(err))
	require.ErrorContains(t, err, "its key is not held")
}

func TestPayloadThatIsNotJSON(t *testing.T) {
	r := listen(t, 200)
	for payload, at := range map[string]string{"": "byte 0", `{"a":`: "byte 5", `{"a":x}`: "byte 6", `{} {}`: "byte 4", "secret words": "byte 1"} {
		j := job(t)
		j.Payload = []byte(payload)
		err := hook(t, r.URL).Handle(t.Context(), j)
		require.True(t, permanent(err), payload)
		require.ErrorContains(t, err, at+": expected one JSON value")
		require.NotContains(t, err.Error(), "secret")
		require.NoError(t, hook(t, r.URL, webhook.ContentType("text/plain; charset=utf-8")).Handle(t.Context(), j))
	}
	require.Equal(t, "text/plain; charset=utf-8", r.heads[0].Get("Content-Type"))
	require.Equal(t, 5, r.count())
}

func TestSecretsAreNowhere(t *testing.T) {
	s := secret(t, " "+otherSecret+"\n")
	key := strings.TrimPrefix(otherSecret, "whsec_")
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", s, "receiver", webhook.Receiver{Secrets: []webhook.Secret{s}})
	text, err := json.Marshal(s)
	require.NoError(t, err)
	all := fmt.Sprintf("%v %+v %#v %s %q %x", s, s, s, s, s, s) + log.String() + string(text)
	all += fmt.Sprintf("%v %+v %#v", webhook.Receiver{Secrets: []webhook.Secret{s}}, webhook.Receiver{Secrets: []webhook.Secret{s}}, []webhook.Secret{s})
	for _, bad := range []string{otherSecret + "=", key, "whsec_" + key[:20], "whsec_***"} {
		_, err := webhook.ParseSecret(bad)
		require.ErrorIs(t, err, delayq.ErrInvalid)
		all += err.Error()
	}
	require.NotContains(t, all, key[:8])
	require.NotContains(t, all, "C2FV")

	for _, url := range []string{"http://user:pass-word@h/?pass-word", "https://h/pass-word%zz", "https:///pass-word", "ftp://h/pass-word", "https://h/pass-word#x"} {
		_, err := webhook.New(webhook.Receiver{URL: url, Secrets: []webhook.Secret{s}})
		require.ErrorIs(t, err, delayq.ErrInvalid, url)
		require.NotContains(t, err.Error(), "pass-word")
	}
	err = hook(t, "http://127.0.0.1:1/pass-word?pass-word").Handle(t.Context(), job(t))
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.NotContains(t, err.Error(), "pass-word")
}

func TestInvalidConfigurations(t *testing.T) {
	fine := webhook.Receiver{URL: "https://h.example/", Secrets: []webhook.Secret{secret(t, vectorSecret)}}
	_, err := webhook.New(fine)
	require.NoError(t, err)
	for want, opt := range map[string]webhook.Option{
		"Timeout(0s)": webhook.Timeout(0), "Timeout(11m0s)": webhook.Timeout(11 * time.Minute), "Delays(0 delays)": webhook.Delays(),
		"Delays(1ms)": webhook.Delays(time.Second, time.Millisecond), "MostHold(0s)": webhook.MostHold(0), "Patience(-1ns)": webhook.Patience(-1),
		"HoldGone: nil": webhook.HoldGone(nil, time.Hour), "ContentType": webhook.ContentType("a b"), "TLS: nil": webhook.TLS(nil),
		"Allow(": webhook.Allow(zeroPrefix), "Deny(": webhook.Deny(zeroPrefix), "nil option": nil,
		"PerHost(0)": webhook.PerHost(0), "PerHost(10001)": webhook.PerHost(10_001),
		"HoldGone(0s)": webhook.HoldGone(delayqtest.Start(t).Client, 0),
	} {
		_, err := webhook.New(webhook.Receiver{URL: "h", Secrets: nil}, opt)
		require.ErrorIs(t, err, delayq.ErrInvalid)
		for _, text := range []string{want, "has no host", "0 secrets"} {
			require.ErrorContains(t, err, text)
		}
		_, err = webhook.NewLookup(nil, opt)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "nil find")
	}
	_, err = webhook.New(webhook.Receiver{URL: fine.URL, Secrets: make([]webhook.Secret, 2)})
	require.ErrorContains(t, err, "secret 1 is empty")
	_, err = webhook.New(webhook.Receiver{URL: fine.URL, Secrets: make([]webhook.Secret, 3)})
	require.ErrorContains(t, err, "3 secrets")

	errFind := errors.New("no such subscription")
	h, err := webhook.NewLookup(func(context.Context, *delayq.Job) (webhook.Receiver, error) { return webhook.Receiver{}, errFind })
	require.NoError(t, err)
	require.ErrorIs(t, h.Handle(t.Context(), job(t)), errFind)
	h, err = webhook.NewLookup(func(context.Context, *delayq.Job) (webhook.Receiver, error) { return webhook.Receiver{}, nil })
	require.NoError(t, err)
	require.True(t, permanent(h.Handle(t.Context(), job(t))))
}

func TestKeyIsTheHost(t *testing.T) {
	for url, want := range map[string]string{
		"https://Shop.Example/a?b": "shop.example", "https://shop.example:443/": "shop.example", "http://shop.example:80": "shop.example",
		"https://shop.example:8443/": "shop.example:8443", "http://shop.example:443": "shop.example:443", "https://[2001:db8::1]:99/": "[2001:db8::1]:99",
	} {
		require.Equal(t, want, job(t, webhook.Key(url)).Key, url)
	}
	q := delayqtest.Start(t)
	for _, url := range []string{"", "https://", "%zz", "/path"} {
		_, err := q.Client.Enqueue(t.Context(), "hooks", "", nil, webhook.Key(url))
		require.ErrorIs(t, err, delayq.ErrInvalid, url)
	}
}
