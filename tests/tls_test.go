package tests

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// A safe is a redis-server that speaks TLS only to those who show a certificate of its own
// authority, and asks for a password.
type safe struct {
	addr   string
	roots  *x509.CertPool
	client tls.Certificate
	admin  *redis.Client // by the port without TLS, which is for the test alone
}

const safePassword = "correct-horse-battery"

// openSafe starts one. Its authority lives as long as the test.
func openSafe(t *testing.T) *safe {
	t.Helper()
	redistest.NeedTLS(t)
	dir := t.TempDir()
	s := &safe{roots: x509.NewCertPool()}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	require.NoError(t, err)
	write := func(name, kind string, bytes []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600))
		return path
	}
	caFile := write("ca.crt", "CERTIFICATE", raw)
	authority, err := x509.ParseCertificate(raw)
	require.NoError(t, err)
	s.roots.AddCert(authority)
	issue := func(name string, serial int64) (cert, private string) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
			KeyUsage:    x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		}, ca, &own.PublicKey, key)
		require.NoError(t, err)
		der, err := x509.MarshalPKCS8PrivateKey(own)
		require.NoError(t, err)
		return write(name+".crt", "CERTIFICATE", raw), write(name+".key", "PRIVATE KEY", der)
	}
	cert, private := issue("server", 2)
	rs := redistest.Start(t, redistest.NoRoles...)
	s.admin = rs.Client(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.addr = listener.Addr().String()
	port := listener.Addr().(*net.TCPAddr).Port
	require.NoError(t, listener.Close())
	for _, setting := range [][2]string{ // one at a time, as Redis 6.2 wants it; the port makes use of all
		{"tls-cert-file", cert}, {"tls-key-file", private}, {"tls-ca-cert-file", caFile},
		{"tls-auth-clients", "yes"}, {"tls-port", strconv.Itoa(port)},
	} {
		require.NoError(t, s.admin.ConfigSet(t.Context(), setting[0], setting[1]).Err())
	}
	require.NoError(t, s.admin.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">"+safePassword, "~*", "&*", "+@all").Err())
	require.NoError(t, s.admin.Do(t.Context(), "ACL", "SETUSER", "keeper", "on", "nopass", "+@all").Err())
	require.NoError(t, s.admin.Do(t.Context(), "AUTH", "keeper", "x").Err())

	clientCert, clientKey := issue("client", 3)
	s.client, err = tls.LoadX509KeyPair(clientCert, clientKey)
	require.NoError(t, err)
	return s
}

// config is that of a client that Redis lets in.
func (s *safe) config() *tls.Config {
	return &tls.Config{RootCAs: s.roots, Certificates: []tls.Certificate{s.client}, MinVersion: tls.VersionTLS12}
}

// A server makes connections of its own: for calls, for the control channel and for blocking pops.
// All of them have the TLS settings and the credentials of the client that it was given, however
// those were given.
func TestServerOverTLSAndWithAPassword(t *testing.T) {
	queuetest.NeedsPop(t)
	t.Parallel()
	s := openSafe(t)
	for name, options := range map[string]func(t *testing.T) *redis.Options{
		"user and password": func(*testing.T) *redis.Options {
			return &redis.Options{Addr: s.addr, TLSConfig: s.config(), Username: "app", Password: safePassword}
		},
		"rediss URL": func(t *testing.T) *redis.Options {
			opt, err := redis.ParseURL(fmt.Sprintf("rediss://app:%s@%s/0", safePassword, s.addr))
			require.NoError(t, err)
			opt.TLSConfig.RootCAs, opt.TLSConfig.Certificates = s.roots, s.config().Certificates
			return opt
		},
		"provider": func(*testing.T) *redis.Options {
			return &redis.Options{Addr: s.addr, TLSConfig: s.config(), CredentialsProvider: func() (string, string) { return "app", safePassword }}
		},
		"provider with a context": func(*testing.T) *redis.Options {
			return &redis.Options{Addr: s.addr, TLSConfig: s.config(), CredentialsProviderContext: func(context.Context) (string, string, error) {
				return "app", safePassword, nil
			}}
		},
		"a dialer": func(t *testing.T) *redis.Options {
			var dialed atomic.Int64
			t.Cleanup(func() { require.GreaterOrEqual(t, dialed.Load(), int64(4), "the server's connections too") })
			return &redis.Options{Addr: s.addr, Username: "app", Password: safePassword, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				dialed.Add(1)
				return (&tls.Dialer{Config: s.config()}).DialContext(ctx, network, addr)
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			opt := options(t)
			opt.ClientName = strings.ReplaceAll(name, " ", "-")
			rdb := redis.NewClient(opt)
			defer func() { _ = rdb.Close() }()
			prefix := redistest.Prefix(t)
			ran := make(chan string, 2)
			server := queuetest.Serve(t, rdb, prefix, "t", func(_ context.Context, job *delayq.Job) error {
				ran <- job.ID
				return nil
			})
			client := delayq.NewClient(rdb, delayq.Prefix(prefix))
			_, err := client.Enqueue(t.Context(), "t", "a", nil)
			require.NoError(t, err)
			require.Equal(t, "a", queuetest.Receive(t, ran))
			mine := regexp.MustCompile(`(?m)^.* name=` + opt.ClientName + ` .*$`)
			queuetest.Until(t, func() bool { // it waits, and it listens
				var list strings.Builder
				for _, line := range mine.FindAllString(s.admin.ClientList(t.Context()).Val(), -1) {
					require.Contains(t, line, " user=app ")
					list.WriteString(line)
				}
				return strings.Contains(list.String(), "cmd=blmove") && strings.Contains(list.String(), "cmd=subscribe")
			})
			_, err = client.Enqueue(t.Context(), "t", "b", nil)
			require.NoError(t, err)
			require.Equal(t, "b", queuetest.Receive(t, ran))
			require.NoError(t, server.Stop())
		})
	}
}

// Who has the wrong authority, no certificate, no TLS or the wrong password gets an error that says
// so, and stores nothing.
func TestWrongTLSAndWrongPassword(t *testing.T) {
	t.Parallel()
	s := openSafe(t)
	for name, test := range map[string]struct {
		opt  redis.Options
		says string
	}{
		"unknown authority": {redis.Options{TLSConfig: &tls.Config{Certificates: s.config().Certificates, MinVersion: tls.VersionTLS12}}, "certificate signed by unknown authority"},
		"no certificate":    {redis.Options{TLSConfig: &tls.Config{RootCAs: s.roots, MinVersion: tls.VersionTLS12}}, "certificate required|reset|broken pipe|EOF"},
		"no TLS":            {redis.Options{}, "EOF|reset|broken pipe"},
		"wrong password":    {redis.Options{TLSConfig: s.config(), Username: "app", Password: "wrong-" + safePassword}, "WRONGPASS"},
	} {
		t.Run(name, func(t *testing.T) {
			opt := test.opt
			opt.Addr, opt.MaxRetries, opt.DialerRetries = s.addr, -1, 1
			rdb := redis.NewClient(&opt)
			defer func() { _ = rdb.Close() }()
			_, err := delayq.NewClient(rdb).Enqueue(t.Context(), "t", "a", []byte("x"))
			require.Error(t, err)
			require.Regexp(t, test.says, err.Error())
			require.NotContains(t, err.Error(), safePassword)
			require.Zero(t, s.admin.DBSize(t.Context()).Val())

			var log queuetest.Logbook
			server := queuetest.Serve(t, rdb, "delayq", "t", func(context.Context, *delayq.Job) error { return nil }, log.To())
			queuetest.Until(t, func() bool {
				for _, line := range log.With("err=") {
					if regexp.MustCompile(test.says).MatchString(line) {
						return true
					}
				}
				return false
			}, "the log says so")
			require.NoError(t, server.Stop())
			require.Empty(t, log.With(safePassword))
		})
	}
}
