package worker

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/handlers/webhook"
)

// A webhookKind posts payloads.
type webhookKind struct {
	Single    *receiver // nil: Receivers and Hosts
	Receivers map[string]receiver
	Hosts     []string
	Secrets   []string

	Timeout, MostHold, Patience, HoldGone time.Duration // HoldGone 0: no
	Delays                                []time.Duration
	PerHost                               int // 0: no bound
	ContentType, CA                       string
	Allow, Deny                           []netip.Prefix
	PlainHTTP                             bool
}

// A receiver is one of the file.
type receiver struct {
	URL     string
	Secrets []string
}

func (l *loader) webhook(o *object) (kind, string) {
	const day = 24 * time.Hour
	k := &webhookKind{Receivers: map[string]receiver{}}
	k.Timeout = o.span("timeout", time.Millisecond, 10*time.Minute, 15*time.Second)
	for _, n := range o.list("delays") {
		if d, ok := l.spanAt(n, "delays", time.Second, 30*day); ok {
			k.Delays = append(k.Delays, d)
		}
	}
	if len(k.Delays) > 100 {
		l.at(o.fields["delays"].value, "delays: %d; expected 1 to 100", len(k.Delays))
	}
	k.PerHost = o.number("per_host", 1, 10_000, 0)
	k.MostHold = o.span("most_hold", time.Second, 30*day, day)
	k.Patience = o.span("patience", 0, 365*day, 3*day)
	k.HoldGone = o.span("hold_gone", time.Second, 365*day, 0)
	k.ContentType = o.text("content_type")
	k.Allow, k.Deny = l.prefixes(o, "allow"), l.prefixes(o, "deny")
	k.PlainHTTP = o.flag("plain_http")
	k.CA = l.authority(o, "tls_ca")
	if k.ContentType != "" {
		l.tryHook(o.fields["content_type"].value, webhook.Receiver{URL: "https://x.example"}, webhook.ContentType(k.ContentType))
	}

	single, many := o.has("url"), o.has("receivers") || o.has("hosts")
	if single {
		r := l.receiver(o, k.PlainHTTP)
		k.Single = &r
	} else {
		k.Secrets = l.hookSecrets(o, o.has("hosts") || !o.has("receivers"))
	}
	o.each("receivers", func(name string, key, value *yaml.Node) {
		of := l.mapping(value, shown(name))
		k.Receivers[name] = l.receiver(of, k.PlainHTTP)
		of.end()
	})
	for _, n := range o.list("hosts") {
		host, ok := l.scalar(n, "hosts")
		if !ok {
			continue
		}
		secret, _ := webhook.ParseSecret(anySecret)
		_, err := webhook.NewNamed(webhook.Named{Hosts: []string{host}, Secrets: []webhook.Secret{secret}})
		if err != nil {
			l.at(n, "hosts: %s; expected a name such as shop.example, *.shop.example or *, in lower case and without a port", shown(host))
		}
		k.Hosts = append(k.Hosts, host)
	}
	switch {
	case single && many:
		l.at(o.key("url"), "url: a single receiver; expected either url, or receivers and hosts")
	case !single && !many:
		o.missing("webhook: has no receiver; expected url, receivers or hosts")
	case !single && len(k.Secrets) > 0 && !o.has("hosts"):
		l.at(o.key("secrets"), "secrets: are for hosts; each of the receivers has its own")
	}
	o.known = append(o.known, "url", "secrets")
	o.end()

	detail := plural(len(k.Receivers), "receiver")
	switch {
	case single:
		detail = "to " + HostOf(k.Single.URL)
	case len(k.Hosts) > 0:
		detail += ", " + plural(len(k.Hosts), "pattern") + " of hosts"
	}
	return k, detail
}

// HostOf returns the host of a URL, which is all of it that may be shown.
func HostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "…"
	}
	return u.Host
}

// anySecret is a secret that signs nothing.
const anySecret = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

// receiver reads the URL and the secrets of a receiver.
func (l *loader) receiver(o *object, plain bool) receiver {
	address, ok := o.value("url", anywhere)
	if !ok && !o.has("url") {
		o.missing("url: missing; expected an address that begins with https://")
	}
	if ok {
		var opts []webhook.Option
		if plain {
			opts = append(opts, webhook.PlainHTTP())
		}
		l.tryHook(o.fields["url"].value, webhook.Receiver{URL: address}, opts...)
	}
	return receiver{address, l.hookSecrets(o, true)}
}

// tryHook notes what is invalid about a receiver or an option.
func (l *loader) tryHook(n *yaml.Node, r webhook.Receiver, opts ...webhook.Option) {
	secret, err := webhook.ParseSecret(anySecret)
	r.Secrets = []webhook.Secret{secret}
	if err == nil {
		_, err = webhook.New(r, opts...)
	}
	if err == nil {
		return
	}
	for text := range strings.Lines(reason(err)) {
		l.at(n, "%s", strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "PlainHTTP", "plain_http"))
	}
}

// hookSecrets reads the secrets that sign requests.
func (l *loader) hookSecrets(o *object, needed bool) (list []string) {
	if !o.has("secrets") {
		if needed {
			o.missing("secrets: missing; expected a list of one, or two while they rotate: {from_env: NAME} or {from_file: PATH}")
		}
		return nil
	}
	nodes := o.list("secrets")
	if len(nodes) > 2 {
		l.at(o.fields["secrets"].value, "secrets: %d; expected one, or two while they rotate", len(nodes))
	}
	for _, n := range nodes {
		text, ok := l.valueAt(n, "secrets", elsewhere)
		if !ok {
			continue
		}
		if _, err := webhook.ParseSecret(text); err != nil {
			l.at(n, "secrets: %s", reason(err))
		}
		list = append(list, text)
	}
	return list
}

// prefixes reads a list of addresses and ranges of them.
func (l *loader) prefixes(o *object, name string) (list []netip.Prefix) {
	for _, n := range o.list(name) {
		text, ok := l.scalar(n, name)
		if !ok {
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if addr, bad := netip.ParseAddr(text); bad == nil && addr.Zone() == "" {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			l.at(n, "%s: %s; expected an address or a range such as 10.1.0.0/16", name, shown(text))
			continue
		}
		list = append(list, prefix)
	}
	return list
}

func (k *webhookKind) same() any { return k }

func (k *webhookKind) databases() []*databaseConfig { return nil }

func (k *webhookKind) complaint(payload []byte) string {
	if k.Single != nil || len(k.Hosts) > 0 && named(payload, "url") != "" {
		return ""
	}
	return choose(payload, "receiver", k.Receivers)
}

func (k *webhookKind) task(payload []byte) string {
	if k.Single != nil {
		return ""
	}
	if address := named(payload, "url"); address != "" {
		return HostOf(address)
	}
	return named(payload, "receiver")
}

func (k *webhookKind) handler(client *delayq.Client, _ func(*databaseConfig) (*pool, error)) (delayq.Handler, error) {
	opts := []webhook.Option{
		webhook.Timeout(k.Timeout), webhook.MostHold(k.MostHold), webhook.Patience(k.Patience), webhook.Allow(k.Allow...), webhook.Deny(k.Deny...),
	}
	if k.Delays != nil {
		opts = append(opts, webhook.Delays(k.Delays...))
	}
	if k.PerHost > 0 {
		opts = append(opts, webhook.PerHost(k.PerHost))
	}
	if k.HoldGone > 0 {
		opts = append(opts, webhook.HoldGone(client, k.HoldGone))
	}
	if k.ContentType != "" {
		opts = append(opts, webhook.ContentType(k.ContentType))
	}
	if k.PlainHTTP {
		opts = append(opts, webhook.PlainHTTP())
	}
	if k.CA != "" {
		opts = append(opts, webhook.TLS(trusting(k.CA)))
	}
	var errs []error
	secrets := func(texts []string) (list []webhook.Secret) {
		for _, text := range texts {
			s, err := webhook.ParseSecret(text)
			list, errs = append(list, s), append(errs, err)
		}
		return list
	}
	if k.Single != nil {
		h, err := webhook.New(webhook.Receiver{URL: k.Single.URL, Secrets: secrets(k.Single.Secrets)}, opts...)
		return h, errors.Join(append(errs, err)...)
	}
	n := webhook.Named{Receivers: map[string]webhook.Receiver{}, Hosts: slices.Clone(k.Hosts), Secrets: secrets(k.Secrets)}
	for name, r := range k.Receivers {
		n.Receivers[name] = webhook.Receiver{URL: r.URL, Secrets: secrets(r.Secrets)}
	}
	h, err := webhook.NewNamed(n, opts...)
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	return h, nil
}
