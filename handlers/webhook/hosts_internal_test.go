package webhook

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// A rounds answers requests instead of a network.
type rounds func(*http.Request) (*http.Response, error)

func (r rounds) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// The bound of PerHost is that of a host, however its URLs are spelled, and Key gives all of them
// one key.
func TestSpellingsOfAHost(t *testing.T) {
	const first = "https://eu.partner.example/a"
	for other, same := range map[string]bool{
		"https://EU.Partner.example/b":     true,
		"https://eu.partner.example:443/b": true,
		"https://EU.PARTNER.example:443":   true,
		"http://eu.partner.example:443":    false, // the keys differ too
		"https://eu.partner.example:8443":  false,
		"https://us.partner.example/a":     false,
	} {
		t.Run(other, func(t *testing.T) {
			arrived, release := make(chan struct{}, 2), make(chan struct{})
			h, err := newHandler([]Option{PerHost(1), PlainHTTP()})
			require.NoError(t, err)
			h.rounds = rounds(func(*http.Request) (*http.Response, error) {
				arrived <- struct{}{}
				<-release
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
			})
			h.find = func(_ context.Context, job *delayq.Job) (target, error) {
				u, err := url.Parse(job.ID)
				return target{url: u, body: job.Payload}, err
			}
			handle := func(id string) error {
				return h.Handle(t.Context(), delayqtest.NewJob(t, delayq.NewJob{
					Topic: "hooks", ID: id, Payload: []byte("{}"), Options: []delayq.JobOption{delayq.Key("k")},
				}))
			}
			results := make(chan error, 2)
			go func() { results <- handle(first) }()
			<-arrived
			go func() { results <- handle(other) }()
			held, left := false, 2
			select {
			case err := <-results:
				require.ErrorContains(t, err, "hold the key")
				held, left = true, 1
			case <-arrived:
			}
			close(release)
			for range left {
				require.NoError(t, <-results)
			}
			require.Equal(t, same, held)
			require.Empty(t, h.running)
			keyOf := func(raw string) string {
				return delayqtest.NewJob(t, delayq.NewJob{Topic: "hooks", ID: "x", Options: []delayq.JobOption{Key(raw)}}).Key
			}
			require.Equal(t, same, keyOf(first) == keyOf(other), "%s and %s", keyOf(first), keyOf(other))
			require.Equal(t, strings.ToLower(keyOf(other)), keyOf(other))
		})
	}
}
