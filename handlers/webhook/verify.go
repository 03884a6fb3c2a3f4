package webhook

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq"
)

// tolerance is how far the clocks of a sender and a receiver may be apart, and how long a request
// may take, as the libraries of Standard Webhooks have it.
const tolerance = 5 * time.Minute

// mostSignatures is how many signatures of a request are looked at. A sender that rotates its
// secret sends two.
const mostSignatures = 16

// ErrSignature is wrapped by each error of [Verify].
var ErrSignature = errors.New("webhook: the request is not from the sender")

// Verify is for receivers: it returns the ID of a request with a body, if one of the secrets signed
// it within the last five minutes. Read the body whole before, with a bound such as that of
// [http.MaxBytesReader], and answer 401 or 400 to an error. Whoever has copied a request can send
// it again within these minutes, and a sender repeats a request whose answer it has not got: so
// record the ID, for ten minutes at least, and drop a request whose ID is known.
//
// The error wraps [ErrSignature] and says what is wrong. It has no secret and no signature. It is
// [delayq.ErrInvalid] if there is no secret, or a zero one. The clock is that of this machine.
func Verify(header http.Header, body []byte, secrets ...Secret) (id string, err error) {
	if len(secrets) == 0 {
		return "", fmt.Errorf("webhook: %w: no secret", delayq.ErrInvalid)
	}
	for i, s := range secrets {
		if s.key == nil {
			return "", fmt.Errorf("webhook: %w: secret %d is empty: use ParseSecret", delayq.ErrInvalid, i+1)
		}
	}
	wrong := func(format string, args ...any) (string, error) {
		return "", fmt.Errorf("%w: %s", ErrSignature, fmt.Sprintf(format, args...))
	}
	for _, name := range []string{"Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"} {
		if n := len(header.Values(name)); n != 1 {
			return wrong("%d headers %s; expected one", n, strings.ToLower(name))
		}
	}
	id = header.Get("Webhook-Id")
	if id == "" || strings.Contains(id, ".") { // with a dot, two requests could have one signature
		return wrong("webhook-id of %d bytes; expected one without a dot", len(id))
	}
	seconds, err := strconv.ParseInt(header.Get("Webhook-Timestamp"), 10, 64)
	if err != nil || strconv.FormatInt(seconds, 10) != header.Get("Webhook-Timestamp") {
		return wrong("webhook-timestamp is no number of seconds")
	}
	at, now := time.Unix(seconds, 0), time.Now()
	if at.Before(now.Add(-tolerance)) || at.After(now.Add(tolerance)) {
		return wrong("webhook-timestamp is more than %v away", tolerance)
	}
	found := false
	for _, s := range secrets {
		want := []byte(s.Sign(id, at, body))
		for i, got := range strings.Fields(header.Get("Webhook-Signature")) {
			if i < mostSignatures && hmac.Equal([]byte(got), want) { // in constant time
				found = true
			}
		}
	}
	if !found {
		return wrong("no signature is right")
	}
	return id, nil
}
