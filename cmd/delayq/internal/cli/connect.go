package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/spf13/pflag"
)

// A connection says how to reach Redis, as the flags and the environment have it.
type connection struct {
	url          string
	prefix       string
	passwordFile string
	cluster      bool
	ca           string
	cert, key    string
	timeout      time.Duration

	password string // from the environment; "": see passwordFile, and the URL
}

const defaultURL = "redis://127.0.0.1:6379/0"

func (c *connection) flags(f *pflag.FlagSet) {
	f.StringVar(&c.url, "redis", defaultURL, "`URL` of Redis: redis, rediss or unix; with master_name a Sentinel, with addr a Cluster")
	f.StringVar(&c.prefix, "prefix", "delayq", "first part of all keys of the queue")
	f.StringVar(&c.passwordFile, "password-file", "", "read the password of Redis from this `file`")
	f.BoolVar(&c.cluster, "cluster", false, "the URL names one node of a Cluster")
	f.StringVar(&c.ca, "tls-ca", "", "trust the certificates in this `file` instead of those of the system")
	f.StringVar(&c.cert, "tls-cert", "", "present the certificate in this `file`")
	f.StringVar(&c.key, "tls-key", "", "private key of --tls-cert, a `file`")
	c.timeout = 10 * time.Second
	f.Var(&duration{&c.timeout}, "timeout", "how long to wait for an answer of Redis")
}

// A dialer opens a connection. Tests have one of their own.
type dialer func(*connection) (redis.UniversalClient, error)

// dial returns a client of the Redis that a connection describes. No error has a password in it.
func dial(c *connection) (redis.UniversalClient, error) {
	if c.timeout < time.Millisecond {
		return nil, usage("--timeout %v: must be at least 1ms", c.timeout)
	}
	password, err := c.secret()
	if err != nil {
		return nil, err
	}
	// The answer to a call can take as long as the timeout. A call is repeated when a connection
	// was lost, and waits once if Redis does not answer.
	const retries = 1
	address, err := url.Parse(c.url)
	if err != nil {
		return nil, c.malformed(err)
	}
	if _, own := address.User.Password(); address.User.Username() != "" && !own && password == "" {
		// go-redis would log in as the user default, who may do more.
		return nil, usage("--redis: the URL names the user %q, and there is no password: use --password-file or DELAYQ_PASSWORD", address.User.Username())
	}
	quiet := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	query := address.Query()
	switch {
	case query.Has("master_name"):
		o, err := redis.ParseFailoverURL(c.url)
		if err != nil {
			return nil, c.malformed(err)
		}
		if password != "" {
			o.Password = password
		}
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout = c.timeout, c.timeout, c.timeout
		o.MaxRetries, o.ContextTimeoutEnabled = retries, true
		if o.TLSConfig, err = c.tls(o.TLSConfig, address.Hostname()); err != nil {
			return nil, err
		}
		return redis.NewFailoverClient(o), nil
	case c.cluster || query.Has("addr"):
		o, err := redis.ParseClusterURL(c.url)
		if err != nil {
			return nil, c.malformed(err)
		}
		if password != "" {
			o.Password = password
		}
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout = c.timeout, c.timeout, c.timeout
		o.ContextTimeoutEnabled, o.MaintNotificationsConfig = true, quiet
		if o.TLSConfig, err = c.tls(o.TLSConfig, address.Hostname()); err != nil {
			return nil, err
		}
		return redis.NewClusterClient(o), nil
	}
	o, err := redis.ParseURL(c.url)
	if err != nil {
		return nil, c.malformed(err)
	}
	if password != "" {
		o.Password = password
	}
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = c.timeout, c.timeout, c.timeout
	o.MaxRetries, o.DialerRetries = retries, 1
	o.ContextTimeoutEnabled, o.MaintNotificationsConfig = true, quiet
	if o.Network != "unix" {
		if o.TLSConfig, err = c.tls(o.TLSConfig, address.Hostname()); err != nil {
			return nil, err
		}
	}
	return redis.NewClient(o), nil
}

// malformed returns the error of a URL without the URL, which may hold a password.
func (c *connection) malformed(err error) error {
	var in *url.Error
	if errors.As(err, &in) {
		err = in.Err
	}
	text := err.Error()
	if u, err := url.Parse(c.url); err == nil {
		if password, ok := u.User.Password(); ok && password != "" {
			text = strings.ReplaceAll(text, password, "…")
		}
	} else if strings.Contains(c.url, "@") {
		text = "cannot be parsed; a password must be percent-encoded"
	}
	return usage("--redis: %s; allowed are redis://[user@]host:port/db, rediss://… and unix:///path", strings.TrimPrefix(text, "redis: "))
}

// secret returns the password that replaces the one of the URL, if there is one.
func (c *connection) secret() (string, error) {
	if c.passwordFile == "" {
		return c.password, nil
	}
	text, err := fileOf(c.passwordFile, 64<<10)
	if err != nil {
		return "", usage("--password-file: %v", err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return "", usage("--password-file: %s is empty", c.passwordFile)
	}
	return password, nil
}

// hasPassword reports whether a URL holds a password.
func hasPassword(address string) bool {
	if u, err := url.Parse(address); err == nil {
		password, ok := u.User.Password()
		return ok && password != "" || u.Query().Has("password") || u.Query().Has("sentinel_password")
	}
	_, after, _ := strings.Cut(address, "://")
	user, _, at := strings.Cut(after, "@")
	return at && strings.Contains(user, ":")
}

// tls returns the TLS settings with what the flags change. With one of them, TLS is used even if
// the URL does not say so.
func (c *connection) tls(o *tls.Config, host string) (*tls.Config, error) {
	if c.ca == "" && c.cert == "" && c.key == "" {
		return o, nil
	}
	if o == nil {
		o = &tls.Config{MinVersion: tls.VersionTLS12}
		if net.ParseIP(host) == nil {
			o.ServerName = host
		}
	}
	if c.ca != "" {
		pem, err := os.ReadFile(c.ca)
		if err != nil {
			return nil, usage("--tls-ca: %v", err)
		}
		o.RootCAs = x509.NewCertPool()
		if !o.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usage("--tls-ca: %s has no certificate in PEM form", c.ca)
		}
	}
	if (c.cert == "") != (c.key == "") {
		return nil, usage("--tls-cert and --tls-key are needed together")
	}
	if c.cert != "" {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, usage("--tls-cert, --tls-key: %v", err)
		}
		o.Certificates = []tls.Certificate{pair}
	}
	return o, nil
}
