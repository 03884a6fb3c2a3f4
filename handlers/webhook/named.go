package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/handlers/internal/jsonerr"
)

// namedForm is the form of a payload for a handler of [NewNamed], for errors.
const namedForm = `{"receiver": "name", "body": …} or {"url": "https://…", "body": …}`

// Named are the receivers that a payload can name.
type Named struct {
	Receivers map[string]Receiver
	// Hosts are the hosts of URLs that a payload may have itself, such as shop.example, which is
	// that host alone, and *.shop.example, which are all hosts below it. Any port is allowed. A
	// single * stands for all hosts: then whoever can enqueue chooses who gets signed requests.
	Hosts []string
	// Secrets sign the requests to Hosts: 1 or 2, or none if there are no Hosts.
	Secrets []Secret
}

// NewNamed returns a handler for several receivers. The payload has the name of a receiver, or the
// URL of one of the hosts, and the body:
//
//	{"receiver": "billing", "body": {"type": "invoice.paid"}}
//	{"url": "https://eu.partner.example/hooks", "body": {"type": "invoice.paid"}}
//
// The receiver gets the body as it stands in the payload, and {} if there is none. With a
// [ContentType] other than application/json the body is a string, and the receiver gets its text. A
// payload that does not fit buries the job. Addresses are refused as for any other receiver.
// NewNamed returns [delayq.ErrInvalid] with every complaint, and without a secret.
func NewNamed(n Named, opts ...Option) (*Handler, error) {
	h, err := newHandler(opts)
	errs := []error{err}
	if len(n.Receivers)+len(n.Hosts) == 0 {
		errs = append(errs, errors.New("neither Receivers nor Hosts"))
	}
	d := &directory{handler: h, named: make(map[string]target), hosts: n.Hosts, secrets: slices.Clone(n.Secrets)}
	for _, name := range slices.Sorted(maps.Keys(n.Receivers)) {
		r := n.Receivers[name]
		u, err := h.parse(r)
		if err != nil {
			errs = append(errs, fmt.Errorf("receiver %q: %w", name, err))
		}
		d.named[name] = target{url: u, secrets: slices.Clone(r.Secrets)}
	}
	for i, host := range n.Hosts {
		if !validHost(host) {
			errs = append(errs, fmt.Errorf("host %d, %q: must be a name such as shop.example, *.shop.example or *, in lower case and without a port", i+1, host))
		}
	}
	if len(n.Hosts) > 0 || len(n.Secrets) > 0 {
		if _, err := h.parse(Receiver{URL: "https://example.com", Secrets: n.Secrets}); err != nil {
			errs = append(errs, fmt.Errorf("secrets for the hosts: %w", err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("webhook: %w: %w", delayq.ErrInvalid, err)
	}
	h.find = d.find
	return h, nil
}

func validHost(pattern string) bool {
	if pattern == "*" {
		return true
	}
	host := strings.TrimPrefix(pattern, "*.")
	u, err := url.Parse("https://" + host)
	return err == nil && host != "" && u.Host == host && u.Hostname() == host && u.Port() == "" && strings.ToLower(host) == host &&
		!strings.Contains(host, "*")
}

// A directory finds the receivers of a [Named].
type directory struct {
	handler *Handler
	named   map[string]target
	hosts   []string
	secrets []Secret
}

func (d *directory) find(_ context.Context, job *delayq.Job) (target, error) {
	t, err := d.read(job.Payload)
	if err != nil {
		return target{}, delayq.Permanent(fmt.Errorf("webhook: payload of %d bytes: %w", len(job.Payload), err))
	}
	return t, nil
}

// read returns what a payload asks for. Its errors have no values but the name and the host.
func (d *directory) read(payload []byte) (target, error) {
	var request struct {
		Receiver *string         `json:"receiver"`
		URL      *string         `json:"url"`
		Body     json.RawMessage `json:"body"`
	}
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&request); err != nil {
		return target{}, fmt.Errorf("%w; expected %s", jsonerr.Located(err, decoder), namedForm)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return target{}, fmt.Errorf("byte %d: more than one value; expected %s", decoder.InputOffset()+1, namedForm)
	}
	var t target
	switch {
	case (request.Receiver == nil) == (request.URL == nil):
		return target{}, fmt.Errorf("needs either a receiver or a url; expected %s", namedForm)
	case request.Receiver != nil:
		found := false
		if t, found = d.named[*request.Receiver]; !found {
			return target{}, fmt.Errorf("there is no receiver %q; expected one of %q", *request.Receiver, slices.Sorted(maps.Keys(d.named)))
		}
	case len(d.hosts) == 0:
		return target{}, errors.New("has a url, and no hosts are allowed; expected a receiver")
	default:
		u, err := d.handler.parse(Receiver{URL: *request.URL, Secrets: d.secrets})
		if err != nil {
			return target{}, err
		}
		if !d.allows(strings.ToLower(u.Hostname())) {
			return target{}, fmt.Errorf("the host %q of the url is not allowed; expected one of %q", u.Hostname(), d.hosts)
		}
		t = target{url: u, secrets: d.secrets}
	}
	switch {
	case d.handler.json && len(request.Body) == 0:
		return t.with([]byte("{}")), nil
	case d.handler.json || len(request.Body) == 0:
		return t.with(request.Body), nil
	}
	var text string
	if err := json.Unmarshal(request.Body, &text); err != nil {
		return target{}, fmt.Errorf("the body is no string; expected one, because the content type is %s", d.handler.contentType)
	}
	return t.with([]byte(text)), nil
}

// allows reports whether a payload may have a URL of this host. An address is below no name,
// although the zone of one of IPv6 can be any text.
func (d *directory) allows(host string) bool {
	_, err := netip.ParseAddr(host)
	address := err == nil || strings.ContainsAny(host, ":%")
	return slices.ContainsFunc(d.hosts, func(pattern string) bool {
		below, wild := strings.CutPrefix(pattern, "*")
		return wild && strings.HasSuffix(host, below) && (!address || below == "") || host == pattern
	})
}
