package webhook

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
)

// Any text of digits is a wait, and nothing else but a date is one.
func FuzzRetryAfter(f *testing.F) {
	for _, text := range []string{"", "0", "30", "2147483648", "99999999999999999999", "-1", "+1", "1e9", " 5", "Fri, 01 Jan 2100 00:00:00 GMT", "Fri, 01 Jan 9999 00:00:00 GMT", "Friday, 01-Jan-01 00:00:00 GMT"} {
		f.Add(text)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		d := retryAfter(text, now)
		_, err := http.ParseTime(text)
		digits := text != "" && strings.Trim(text, "0123456789") == ""
		if wait := digits || err == nil; wait != (d >= time.Second) || !wait && d != 0 {
			t.Fatalf("%q: %v", text, d)
		}
	})
}

// A payload of anybody gets to a receiver of the directory, or to a host of it, or is an error. It
// never gets to an address because of a host that stands for names.
func FuzzNamedPayload(f *testing.F) {
	for _, text := range []string{
		``, `{}`, `{"receiver": "billing", "body": {}}`, `{"url": "https://a.shop.example/x", "body": 1}`, `{"url": "https://[::1%25x.shop.example]/"}`, `{"url": "https://[::ffff:1.2.3.4%25.shop.example]:1/"}`,
		`{"url": "https://127.0.0.1%2eshop.example/"}`, `{"url": "https://.shop.example"}`, `{"body": ` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, `{"url": "https://u@a.shop.example"}`,
	} {
		f.Add(text)
	}
	key := Secret{make([]byte, minSecret)}
	h, err := newHandler(nil)
	if err != nil {
		f.Fatal(err)
	}
	billing := &url.URL{Scheme: "https", Host: "billing.example"}
	d := &directory{handler: h, named: map[string]target{"billing": {url: billing, secrets: []Secret{key}}}, hosts: []string{"*.shop.example"}, secrets: []Secret{key}}
	f.Fuzz(func(t *testing.T, payload string) {
		to, err := d.read([]byte(payload))
		if err != nil {
			return
		}
		host := to.url.Hostname()
		if _, err := netip.ParseAddr(host); err == nil || to.url != billing && !strings.HasSuffix(strings.ToLower(host), ".shop.example") || to.url.Scheme != "https" || to.url.User != nil {
			t.Fatalf("%s: %s", payload, to.url)
		}
	})
}

// Nobody signs without the secret.
func FuzzVerify(f *testing.F) {
	key := Secret{[]byte(strings.Repeat("k", minSecret))}
	f.Add("msg_1", "1767323045", key.Sign("msg_1", time.Unix(1767323045, 0), []byte("{}")), []byte("{}"))
	f.Add("", "", "v1, v1,", []byte(nil))
	f.Fuzz(func(t *testing.T, id, at, signature string, body []byte) {
		header := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {at}, "Webhook-Signature": {signature}}
		if _, err := Verify(header, body, key); err == nil {
			t.Fatal("accepted")
		}
	})
}
