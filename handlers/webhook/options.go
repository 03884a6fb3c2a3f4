package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/delayq/delayq"
)

// An Option configures a [Handler].
type Option func(*Handler) error

// Timeout is how long a request may take, from the lookup of the name to the last byte that is read
// of the answer. A receiver that accepts a request and does its work later needs less. One that
// does the work first needs more, and occupies a worker meanwhile. Default: 15 s. Range: 1 ms to 10
// minutes.
func Timeout(d time.Duration) Option {
	return func(h *Handler) error {
		h.timeout = d
		return within("Timeout", d, time.Millisecond, 10*time.Minute)
	}
}

// Delays are the delays before the first, second, … retry. After the last one, its delay is
// repeated. Up to a fifth is added at random, so that jobs that failed together do not come back
// together. How often a job is retried is for [delayq.Retry] to say: without that it is retried
// forever. With Retry(9) the default delays are used once each, over three days. Default: 5 s, 5 m,
// 30 m, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h. Range: 1 to 100 delays of 1 s to 30 days.
func Delays(list ...time.Duration) Option {
	return func(h *Handler) error {
		if n := len(list); n < 1 || n > 100 {
			return fmt.Errorf("Delays(%d delays): from 1 to 100", n)
		}
		var errs []error
		for _, d := range list {
			errs = append(errs, within("Delays", d, time.Second, 30*24*time.Hour))
		}
		h.delays = slices.Clone(list)
		return errors.Join(errs...)
	}
}

// PerHost bounds the requests to one host at a time, in this process. A job that would exceed it
// holds its key for 100 ms and uses up no attempt, so that the worker is free for other hosts. With
// a bound well below the [delayq.Concurrency] of the topic, a receiver that answers slowly or never
// cannot occupy all workers. With a bound that is too low, a fast receiver gets bursts with pauses.
// Jobs without a key count, and are never held. Default: no bound, which is right for a single
// receiver. Range: 1 to 10,000.
func PerHost(n int) Option {
	return func(h *Handler) error {
		if h.perHost = n; n < 1 || n > 10_000 {
			return fmt.Errorf("PerHost(%d): from 1 to 10000", n)
		}
		return nil
	}
}

// MostHold is the longest hold for one Retry-After. A longer one counts as that, because otherwise
// a receiver could hold its jobs for years. The shortest is a second. Default: 24 h. Range: 1 s to
// 30 days.
func MostHold(d time.Duration) Option {
	return func(h *Handler) error {
		h.mostHold = d
		return within("MostHold", d, time.Second, 30*24*time.Hour)
	}
}

// Patience is how long after its due time a job can be held instead of failing. A hold uses up no
// attempt, so a receiver that always asks for a hold would keep the job forever. After this time
// the answer is a failure, which counts against [delayq.Retry]; the job is retried after the
// Retry-After or the delay of its attempt, whichever is longer. Default: 72 h. Range: 0, which
// never holds, to 365 days.
func Patience(d time.Duration) Option {
	return func(h *Handler) error {
		h.patience = d
		return within("Patience", d, 0, 365*24*time.Hour)
	}
}

// HoldGone makes an answer of 410 hold the key of the job for d, with [delayq.Client.HoldKey], so
// that the other jobs of the receiver wait until somebody has looked: delete them, or let them run
// with [delayq.Client.ResumeKey]. The Redis user of the client needs the right to HoldKey, which a
// worker does not have: see docs/security.md. If the call fails, the job is buried all the same,
// and its error says so. Jobs without a key hold nothing. Default: a 410 only buries its job. Range
// of d: 1 s to 365 days.
func HoldGone(client *delayq.Client, d time.Duration) Option {
	return func(h *Handler) error {
		if client == nil {
			return errors.New("HoldGone: nil client")
		}
		h.gone = func(ctx context.Context, job *delayq.Job) error {
			return client.HoldKey(ctx, job.Topic, job.Key, d)
		}
		return within("HoldGone", d, time.Second, 365*24*time.Hour)
	}
}

// ContentType is the header Content-Type. If it is application/json, a payload that is not JSON is
// permanent. Default: application/json, as Standard Webhooks has it.
func ContentType(value string) Option {
	return func(h *Handler) error {
		kind, _, err := mime.ParseMediaType(value)
		if err != nil {
			return fmt.Errorf("ContentType(%q): %w", value, err)
		}
		h.contentType, h.json = value, kind == "application/json"
		return nil
	}
}

// Allow lets the handler connect to addresses that it refuses otherwise, such as 10.1.0.0/16 for
// receivers of your own. Everybody who can choose a URL can reach them then.
func Allow(prefixes ...netip.Prefix) Option {
	return func(h *Handler) error {
		h.guard.allow = append(h.guard.allow, prefixes...)
		return valid("Allow", prefixes)
	}
}

// Deny makes the handler refuse more addresses, such as your own public ones. It takes precedence
// over [Allow]. A network with a NAT64 prefix of its own needs it here. So does a
// machine in Azure with 168.63.129.16/32, which is a public address of the platform itself.
func Deny(prefixes ...netip.Prefix) Option {
	return func(h *Handler) error {
		h.guard.deny = append(h.guard.deny, prefixes...)
		return valid("Deny", prefixes)
	}
}

// PlainHTTP accepts receivers whose URL begins with http. Their requests can be read and changed on
// the way; the signature only makes a change visible. Default: only https.
func PlainHTTP() Option {
	return func(h *Handler) error {
		h.plain = true
		return nil
	}
}

// TLS sets the configuration for https, for example with the certificate authority of your own
// receivers. It is copied. Default: that of Go.
func TLS(config *tls.Config) Option {
	return func(h *Handler) error {
		if config == nil {
			return errors.New("TLS: nil configuration")
		}
		h.tls = config.Clone()
		return nil
	}
}

// Resolver resolves the names of receivers. The addresses that it returns are checked like those of
// any other. Default: [net.DefaultResolver].
func Resolver(r *net.Resolver) Option {
	return func(h *Handler) error {
		h.resolver = r
		return nil
	}
}

func within(name string, d, least, most time.Duration) error {
	if d < least || d > most {
		return fmt.Errorf("%s(%v): from %v to %v", name, d, least, most)
	}
	return nil
}

func valid(name string, prefixes []netip.Prefix) error {
	if slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return !p.IsValid() }) {
		return fmt.Errorf("%s(%v): an invalid prefix", name, prefixes)
	}
	return nil
}
