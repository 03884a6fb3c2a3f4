package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/delayq/delayq"
)

// The bounds of what is read of an answer, in bytes. The body decides nothing. It is read so that
// the connection can be used again; that of a longer one is closed.
const (
	maxBody    = 16 << 10 // of an answer, that are read
	maxShown   = 1 << 10  // of these, that are attached to the run
	maxHeaders = 64 << 10
	maxReason  = 512 // of the text of an error, which can quote an answer that is not HTTP
)

// busyHold is how long the key of a host with too many requests is held: see [PerHost].
const busyHold = 100 * time.Millisecond

// A Receiver is where the payload of a job goes.
type Receiver struct {
	// URL has the scheme https, or http with [PlainHTTP]. It has no user and no fragment. Only its
	// host gets into errors, so its path and its query may have a token.
	URL string
	// Secrets sign each request. Set two while they are rotated: the receiver accepts a request if
	// one signature is right. Range: 1 or 2.
	Secrets []Secret
}

// A Handler posts payloads. It is a [delayq.Handler], safe for concurrent use, and need not be
// closed: idle connections end after 90 s.
type Handler struct {
	find   func(context.Context, *delayq.Job) (target, error)
	rounds http.RoundTripper

	timeout, mostHold, patience time.Duration
	delays                      []time.Duration
	gone                        func(context.Context, *delayq.Job) error
	contentType                 string
	json, plain                 bool
	guard                       guard
	tls                         *tls.Config
	resolver                    *net.Resolver

	perHost int // 0: no bound
	mu      sync.Mutex
	running map[string]int // requests to a host, if there is a bound; no entry is 0
}

// A StatusError is the error of a job whose receiver did not answer with 2xx.
type StatusError struct {
	Host   string // of the receiver, with its port if the URL has one
	Status int    // of the answer
}

// Error returns the host and the status. It has nothing else of the answer, because people who can
// read the errors of a job may not be people who can reach the receiver.
func (e *StatusError) Error() string {
	return strings.TrimRight(fmt.Sprintf("webhook: %s answered %d %s", e.Host, e.Status, http.StatusText(e.Status)), " ")
}

// errTimeout is the cause when [Timeout] is over.
var errTimeout = errors.New("webhook: the time for a request is over")

// New returns a handler that posts all payloads to one receiver. It returns [delayq.ErrInvalid] for
// an invalid receiver or option; the text has every complaint and no secret.
func New(r Receiver, opts ...Option) (*Handler, error) {
	h, err := newHandler(opts)
	u, bad := h.parse(r)
	if err = errors.Join(err, bad); err != nil {
		return nil, fmt.Errorf("webhook: %w: %w", delayq.ErrInvalid, err)
	}
	own := target{url: u, secrets: slices.Clone(r.Secrets)}
	h.find = func(_ context.Context, job *delayq.Job) (target, error) { return own.with(job.Payload), nil }
	return h, nil
}

// NewLookup returns a handler that calls find at every run for the receiver of the job, for example
// in a table of subscriptions. An error of find is the outcome of the job: use [delayq.Permanent]
// for one that no longer exists. An invalid receiver buries the job.
func NewLookup(find func(context.Context, *delayq.Job) (Receiver, error), opts ...Option) (*Handler, error) {
	h, err := newHandler(opts)
	if find == nil {
		err = errors.Join(err, errors.New("nil find"))
	}
	if err != nil {
		return nil, fmt.Errorf("webhook: %w: %w", delayq.ErrInvalid, err)
	}
	h.find = func(ctx context.Context, job *delayq.Job) (target, error) {
		r, err := find(ctx, job)
		if err != nil {
			return target{}, fmt.Errorf("webhook: find the receiver: %w", err)
		}
		u, err := h.parse(r)
		if err != nil {
			return target{}, delayq.Permanent(fmt.Errorf("webhook: receiver: %w", err))
		}
		return target{u, r.Secrets, job.Payload}, nil
	}
	return h, nil
}

// newHandler always returns a handler, so that New can complain about a receiver too.
func newHandler(opts []Option) (*Handler, error) {
	h := &Handler{
		timeout: 15 * time.Second, mostHold: 24 * time.Hour, patience: 72 * time.Hour,
		contentType: "application/json", json: true,
		running: make(map[string]int),
		delays: []time.Duration{
			5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
			10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
		},
	}
	var errs []error
	for _, opt := range opts {
		if opt == nil {
			errs = append(errs, errors.New("nil option"))
			continue
		}
		errs = append(errs, opt(h))
	}
	dialer := &net.Dialer{Control: h.guard.control, Resolver: h.resolver}
	h.rounds = &http.Transport{
		Proxy:       nil, // see the package documentation
		DialContext: dialer.DialContext, TLSClientConfig: h.tls, ForceAttemptHTTP2: true,
		MaxIdleConns: 256, MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second,
		MaxResponseHeaderBytes: maxHeaders, DisableCompression: true,
	}
	return h, errors.Join(errs...)
}

// parse returns the URL of a receiver. Its errors have no more of the URL than the host.
func (h *Handler) parse(r Receiver) (*url.URL, error) {
	var errs []error
	u, err := url.Parse(r.URL)
	switch {
	case err != nil: // its text has the URL
		errs = append(errs, fmt.Errorf("URL of %d bytes: cannot be read", len(r.URL)))
	case u.Hostname() == "":
		errs = append(errs, fmt.Errorf("URL of %d bytes: has no host", len(r.URL)))
	case u.Scheme != "https" && (u.Scheme != "http" || !h.plain):
		errs = append(errs, fmt.Errorf("URL of %s: scheme %q: must be https, or http with PlainHTTP", u.Host, u.Scheme))
	case u.User != nil:
		errs = append(errs, fmt.Errorf("URL of %s: must have no user", u.Host))
	case u.Fragment != "":
		errs = append(errs, fmt.Errorf("URL of %s: must have no fragment", u.Host))
	}
	if n := len(r.Secrets); n < 1 || n > 2 {
		errs = append(errs, fmt.Errorf("%d secrets: must be 1, or 2 while they are rotated", n))
	}
	for i, s := range r.Secrets {
		if s.key == nil {
			errs = append(errs, fmt.Errorf("secret %d is empty: use ParseSecret", i+1))
		}
	}
	return u, errors.Join(errs...)
}

// Handle posts the payload of a job: see the package documentation.
func (h *Handler) Handle(ctx context.Context, job *delayq.Job) error {
	to, err := h.find(ctx, job)
	if err != nil {
		return err
	}
	if h.json && !json.Valid(to.body) {
		var bad *json.SyntaxError // says where
		if errors.As(json.Unmarshal(to.body, new(json.RawMessage)), &bad) {
			return delayq.Permanent(fmt.Errorf("webhook: payload of %d bytes: byte %d: expected one JSON value", len(job.Payload), bad.Offset))
		}
	}
	if h.perHost > 0 {
		host := hostOf(to.url)
		if n := h.enter(host); n > h.perHost && job.Key != "" {
			h.leave(host)
			return delayq.HoldKey(busyHold)
		}
		defer h.leave(host)
	}
	answer, err := h.post(ctx, to, job)
	if err != nil {
		return h.failed(ctx, to.url.Host, job, err)
	}
	_ = job.SetOutput(answer.text) // it is short; a job without a run keeps none
	return h.decide(ctx, to.url.Host, job, answer)
}

// enter counts a request to a host and returns how many there are.
func (h *Handler) enter(host string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running[host]++
	return h.running[host]
}

func (h *Handler) leave(host string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running[host]--; h.running[host] == 0 {
		delete(h.running, host)
	}
}

// A target is a receiver that has been checked, and what it gets.
type target struct {
	url     *url.URL
	secrets []Secret
	body    []byte
}

func (t target) with(body []byte) target {
	t.body = body
	return t
}

// An answer is what counts of a response.
type answer struct {
	status int
	hold   time.Duration // what Retry-After asks for; 0: nothing
	text   []byte        // the status and the beginning of the body
}

func (h *Handler) post(ctx context.Context, to target, job *delayq.Job) (answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.timeout, errTimeout)
	defer cancel()
	id, now := ID(job), time.Now()
	signatures := make([]string, len(to.secrets))
	for i, s := range to.secrets {
		signatures[i] = s.Sign(id, now, to.body)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "", bytes.NewReader(to.body))
	if err != nil {
		return answer{}, err
	}
	req.URL, req.Host = to.url, to.url.Host // parsed already
	req.Header = http.Header{
		"Content-Type": {h.contentType}, "User-Agent": {"delayq-webhook"}, "Webhook-Id": {id},
		"Webhook-Timestamp": {strconv.FormatInt(now.Unix(), 10)}, "Webhook-Signature": {strings.Join(signatures, " ")},
	}
	resp, err := h.rounds.RoundTrip(req) // it follows no redirect
	if err != nil {
		return answer{}, errors.Join(err, context.Cause(ctx))
	}
	defer resp.Body.Close()
	text := fmt.Appendf(make([]byte, 0, 64), "%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	if resp.ContentLength != 0 {
		var body [maxShown]byte
		if n, _ := io.ReadFull(resp.Body, body[:]); n > 0 {
			text = append(append(text, '\n'), body[:n]...)
		}
		// What is left of a longer or a slower body is dropped with the connection.
		_, _ = io.CopyN(io.Discard, resp.Body, maxBody-maxShown)
	}
	return answer{resp.StatusCode, retryAfter(resp.Header.Get("Retry-After"), now), text}, nil
}

// retryAfter reads a header Retry-After: seconds or a date (RFC 9110, section 10.2.3). A number
// that is too large for a duration is the longest one. It returns 0 for anything else.
func retryAfter(value string, now time.Time) time.Duration {
	if value != "" && strings.Trim(value, "0123456789") == "" {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n > int64(math.MaxInt64/time.Second) {
			return math.MaxInt64
		}
		return max(time.Duration(n)*time.Second, time.Second)
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), time.Second)
	}
	return 0
}

// failed is the outcome of a request without an answer.
func (h *Handler) failed(ctx context.Context, host string, job *delayq.Job, err error) error {
	var refused *addressError
	var name *net.DNSError
	switch {
	case errors.As(err, &refused): // without the address, which those who see errors may not know
		return delayq.Permanent(fmt.Errorf("webhook: %s: %w", host, refused))
	case ctx.Err() != nil: // that of the job
		err = fmt.Errorf("webhook: %s: %w", host, context.Cause(ctx))
	case errors.Is(err, errTimeout):
		err = fmt.Errorf("webhook: %s: no answer within %v", host, h.timeout)
	case errors.As(err, &name): // without the address of the server of names
		err = fmt.Errorf("webhook: %s: the name could not be looked up: %s", host, unresolved(name))
	default:
		text := err.Error()
		err = fmt.Errorf("webhook: %s: %s", host, strings.ToValidUTF8(text[:min(len(text), maxReason)], "\uFFFD"))
	}
	return delayq.RetryIn(h.delay(job), err)
}

// unresolved says why a name could not be looked up.
func unresolved(err *net.DNSError) string {
	switch {
	case err.IsNotFound:
		return "no such host"
	case err.IsTimeout:
		return "no answer in time"
	}
	return "the server of names failed"
}

// decide is the outcome of an answer.
func (h *Handler) decide(ctx context.Context, host string, job *delayq.Job, a answer) error {
	if a.status >= 200 && a.status < 300 {
		return nil
	}
	var err error = &StatusError{host, a.status}
	switch {
	case a.status == http.StatusGone:
		if h.gone != nil && job.Key != "" {
			if bad := h.gone(ctx, job); bad != nil {
				err = fmt.Errorf("%w; its key is not held: %w", err, bad)
			}
		}
		return delayq.Permanent(err)
	case a.hold > 0 && (a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable):
		hold := min(a.hold, h.mostHold)
		if job.Lateness() < h.patience {
			return fmt.Errorf("%w: %w", err, delayq.HoldKey(hold))
		}
		return delayq.RetryIn(max(hold, h.delay(job)), err)
	}
	return delayq.RetryIn(h.delay(job), err)
}

// delay returns the delay before the next run of a job that fails now.
func (h *Handler) delay(job *delayq.Job) time.Duration {
	failures := job.Attempt - 1 // with Revive and unlimited retries it does not start again
	if job.Retries >= 0 {
		failures = job.Retries - job.RetriesLeft()
	}
	d := h.delays[min(max(failures, 0), len(h.delays)-1)]
	return d + rand.N(d/5+1)
}

// Key is the option that makes the host of a URL the key of a job ([delayq.Key]), in lower case and
// with the port unless it is that of the scheme. A URL without a host makes Enqueue return
// [delayq.ErrInvalid].
func Key(rawURL string) delayq.JobOption {
	u, err := url.Parse(rawURL)
	if err != nil {
		return delayq.Key("")
	}
	return delayq.Key(hostOf(u))
}

// hostOf names the host of a URL in lower case, with its port unless that is the default one.
func hostOf(u *url.URL) string {
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if cmp.Or(port, "443") == "443" && u.Scheme == "https" || cmp.Or(port, "80") == "80" && u.Scheme == "http" || host == "" {
		return host
	}
	return net.JoinHostPort(host, port)
}
