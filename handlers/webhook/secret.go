package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/handlers/internal/incarnation"
)

// The bounds of the key in a secret, in bytes, as the specification has them.
const (
	minSecret = 24
	maxSecret = 64
)

// A Secret signs requests. It prints and logs as "whsec_…", so it cannot get into a log by
// accident. The zero Secret is invalid: use [ParseSecret].
type Secret struct{ key []byte }

// ParseSecret reads a secret as the specification writes it: "whsec_" and 24 to 64 bytes in base64.
// White space around it is ignored, because files end with a line break. The error is
// [delayq.ErrInvalid] and never has the text of the secret.
func ParseSecret(text string) (Secret, error) {
	encoded, found := strings.CutPrefix(strings.TrimSpace(text), "whsec_")
	if !found {
		return Secret{}, fmt.Errorf("%w: secret of %d bytes: must begin with whsec_", delayq.ErrInvalid, len(text))
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return Secret{}, fmt.Errorf("%w: secret of %d bytes: must be base64 after whsec_", delayq.ErrInvalid, len(text))
	}
	if n := len(key); n < minSecret || n > maxSecret {
		return Secret{}, fmt.Errorf("%w: secret of %d bytes after base64: must have %d to %d", delayq.ErrInvalid, n, minSecret, maxSecret)
	}
	return Secret{key}, nil
}

const hidden = "whsec_…"

// String returns "whsec_…".
func (Secret) String() string { return hidden }

// GoString returns "whsec_…".
func (Secret) GoString() string { return hidden }

// LogValue returns "whsec_…".
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText returns "whsec_…".
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Sign returns the value of the header webhook-signature for one secret: "v1," and the HMAC-SHA256
// of "id.timestamp.payload" in base64. Use it in tests of a receiver.
func (s Secret) Sign(id string, at time.Time, payload []byte) string {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
	mac.Write(payload)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// ID returns the webhook-id of a job: "msg_" and 32 hexadecimal digits of a SHA-256 over its topic,
// its ID and its nonce ([delayq.Job.Nonce]). It is the same in all attempts, so that a receiver can
// drop a request that it has had. A job that is enqueued later with the same ID has another one.
func ID(job *delayq.Job) string { return "msg_" + incarnation.Name(job) }
