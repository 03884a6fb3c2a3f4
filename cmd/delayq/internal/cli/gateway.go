package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/gateway"
	"github.com/delayq/delayq/prom"
)

// gatewayFlags are the flags of the gateway.
type gatewayFlags struct {
	listen, metrics  string
	tokens           string
	cert, key        string
	plain            bool
	add              string
	rights, topics   string
	body             int64
	leases, waiters  int
	requests, served int
	share            int
	drain            time.Duration
}

func (a *app) gatewayCommand() *cobra.Command {
	f := gatewayFlags{
		listen: "127.0.0.1:8075", body: 1 << 20, leases: 1000, waiters: 1000, requests: 256, served: 100, share: 50, drain: 10 * time.Second,
		rights: "produce", topics: "*",
	}
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Serve the queue over HTTP, for programs in any language",
		Long: `Serve the queue over HTTP and JSON: enqueue, read, move, cancel and wait for jobs, and take
and settle them as a consumer. docs/howto/gateway.md has examples for curl, Python and
Node. /v1/openapi.json describes the API, and /healthz answers as long as the process lives.

Each request has a bearer token. --tokens names a file with their SHA-256, what each may do
and in which topics. --add-token writes a line for it to stdout, and the token to stderr.
SIGHUP loads the file and the certificate anew. On an address that others can reach it needs
--cert and --key, or --plain behind a proxy that has TLS.

A consumer that dies loses its jobs when their leases end, and others get them. A lease is
known to the process that has given it: with several gateways, send the requests of a
consumer to one of them. SIGINT and SIGTERM answer those that wait for jobs, let consumers
settle what they have for the time of --drain, and put the rest back. The gateway needs the
rights of the role worker, and to revive or bury jobs those of the operator too.`,
		Example: `  delayq gateway --add-token shop --rights produce --topics 'order:*' >> tokens
  delayq gateway --tokens tokens
  delayq gateway --tokens tokens --listen :8443 --cert server.pem --key server.key`,
		Args:              counted(0, 0, "no arguments"),
		ValidArgsFunction: a.completeArgs(nothing),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !a.tabular() {
				return usage("-o %s: gateway has no output but its log", a.format)
			}
			if f.add != "" {
				return a.addToken(&f)
			}
			return a.gateway(cmd.Context(), &f)
		},
	}
	s := cmd.Flags()
	s.SortFlags = false
	s.StringVar(&f.tokens, "tokens", "", "`file` with the tokens")
	s.StringVar(&f.add, "add-token", "", "make a token with this `name`, and do nothing else")
	s.StringVar(&f.rights, "rights", f.rights, "with --add-token: its `rights`, of produce, consume and operate, with commas between")
	s.StringVar(&f.topics, "topics", f.topics, "with --add-token: its `topics`, with commas between; * stands for any text")
	s.StringVar(&f.listen, "listen", f.listen, "`address` to listen on; port 0 is a free one")
	s.StringVar(&f.cert, "cert", "", "present the certificate in this `file` to clients")
	s.StringVar(&f.key, "key", "", "private key of --cert, a `file`")
	s.BoolVar(&f.plain, "plain", false, "no TLS, also on an address that others can reach: a proxy has it")
	s.StringVar(&f.metrics, "metrics", "", "`address` of livez, readyz, healthz and metrics, without a login; default: none")
	s.Int64Var(&f.body, "max-body", f.body, "most bytes of a request")
	s.IntVar(&f.leases, "max-leases", f.leases, "most jobs that consumers have at a time, together")
	s.IntVar(&f.waiters, "max-waiters", f.waiters, "most takes and waits for results at a time")
	s.IntVar(&f.requests, "max-requests", f.requests, "most other requests at a time")
	s.IntVar(&f.served, "max-topics", f.served, "most topics from which consumers take at a time")
	s.IntVar(&f.share, "token-share", f.share, "percent of each of these that one token of several can use")
	s.Var(&duration{&f.drain}, "drain", "how long consumers can settle jobs at the end")
	return cmd
}

// addToken makes a token. The line for the file goes to stdout, and the token to stderr.
func (a *app) addToken(f *gatewayFlags) error {
	token, line, err := gateway.NewToken(f.add, f.rights, f.topics)
	if err != nil {
		return usage("--add-token: %v", err)
	}
	a.say("token of %s, which is shown only now: %s", f.add, token)
	_, err = fmt.Fprintln(a.stdout(), line)
	return err
}

// check returns what is wrong with the flags.
func (f *gatewayFlags) check() error {
	host, _, err := net.SplitHostPort(f.listen)
	switch {
	case err != nil:
		return usage("the address %q must be HOST:PORT or :PORT: %v", f.listen, err)
	case f.tokens == "":
		return usage("--tokens is needed: the file that says who may do what; --add-token writes a line for it")
	case (f.cert == "") != (f.key == ""):
		return usage("--cert and --key are needed together")
	case f.cert == "" && !f.plain && !loopback(host):
		return usage("others can reach %s, and tokens would be readable: it needs --cert and --key, or --plain behind a proxy that has TLS", f.listen)
	case f.cert != "" && f.plain:
		return usage("--plain excludes --cert and --key")
	case f.drain < time.Millisecond || f.drain > time.Hour:
		return usage("--drain %v: must be from 1ms to 1h", f.drain)
	}
	for _, bound := range []struct {
		flag    string
		n, most int64
	}{
		{"max-body", f.body, maxPayload}, {"max-leases", int64(f.leases), 100_000}, {"max-waiters", int64(f.waiters), 10_000},
		{"max-requests", int64(f.requests), 10_000}, {"max-topics", int64(f.served), 1000}, {"token-share", int64(f.share), 100},
	} {
		if bound.n < 1 || bound.n > bound.most {
			return usage("--%s %d: must be from 1 to %d", bound.flag, bound.n, bound.most)
		}
	}
	return nil
}

// gateway serves the queue until it is asked to end.
func (a *app) gateway(parent context.Context, f *gatewayFlags) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	tokens, err := gateway.NewTokens(f.tokens)
	if err != nil {
		return badFile("%v", err)
	}
	var pair keyPair
	if f.cert != "" {
		if err := pair.load(f); err != nil {
			return badFile("--cert, --key: %v", err)
		}
	}
	client, err := a.queue()
	if err != nil {
		return err
	}
	if err := a.validPrefix(parent); err != nil { // before Redis is asked: it may be away
		return err
	}
	ctx, stop := signal.NotifyContext(parent, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(a.err, nil))
	counts := prom.NewMetrics()
	g := gateway.New(gateway.Config{
		Redis: a.rdb, Prefix: a.prefix, Client: client, Tokens: tokens, Log: log, Hooks: []delayq.Hook{counts}, MaxBody: f.body,
		MaxLeases: f.leases, MaxWaiters: f.waiters, MaxRequests: f.requests, MaxTopics: f.served, TokenShare: f.share, Drain: f.drain,
	})
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		return &exitCode{exitError, err.Error()}
	}
	if f.metrics != "" {
		page, bad := serveGateway(f.metrics, g, counts, log)
		if bad != nil {
			return errors.Join(bad, listener.Close())
		}
		defer func() { err = errors.Join(err, page.end()) }()
		a.say("livez, readyz, healthz and metrics on http://%s/", page.listener.Addr())
	}
	server, bounded := g.HTTPServer(listener, log)
	scheme := "http"
	if f.cert != "" {
		scheme = "https"
		server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get}
	}
	s := &metricsServer{Server: server, listener: bounded, ended: make(chan error, 1)}
	go func() {
		defer stop() // a gateway that nobody can reach must not take jobs
		if f.cert != "" {
			s.ended <- s.ServeTLS(bounded, "", "")
			return
		}
		s.ended <- s.Serve(bounded)
	}()
	defer func() { err = errors.Join(err, s.end()) }()
	a.say("gateway of prefix %q on %s://%s/", a.prefix, scheme, listener.Addr())
	defer a.reloads(ctx, log, tokens, &pair, f)()
	return g.Run(ctx)
}

// reloads makes SIGHUP load the tokens and the certificate anew, until the function that it returns
// is called.
func (a *app) reloads(ctx context.Context, log *slog.Logger, tokens *gateway.Tokens, pair *keyPair, f *gatewayFlags) (end func()) {
	hups := make(chan os.Signal, 1)
	signal.Notify(hups, syscall.SIGHUP) // which would end the process
	ctx, cancel := context.WithCancel(ctx)
	var loop sync.WaitGroup
	loop.Go(func() {
		for {
			select {
			case <-hups:
			case <-ctx.Done():
				return
			}
			err := tokens.Load()
			if f.cert != "" {
				err = errors.Join(err, pair.load(f))
			}
			if err != nil {
				log.Error("not loaded; what cannot be read stays as it was", "err", err)
				continue
			}
			log.Info("the tokens were loaded")
		}
	})
	return func() {
		signal.Stop(hups)
		cancel()
		loop.Wait()
	}
}

// A keyPair is a certificate that can be loaded anew.
type keyPair struct {
	now atomic.Pointer[tls.Certificate]
}

func (p *keyPair) load(f *gatewayFlags) error {
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err == nil {
		p.now.Store(&pair)
	}
	return err
}

func (p *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.now.Load(), nil }

// serveGateway serves the health and the metrics of a gateway.
func serveGateway(address string, g *gateway.Gateway, counts *prom.Metrics, log *slog.Logger) (*metricsServer, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, usage("the address %q must be HOST:PORT or :PORT: %v", address, err)
	}
	reg := prometheus.NewRegistry()
	if err := errors.Join(reg.Register(counts), g.Metrics.Register(reg)); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError), EnableOpenMetrics: true, MaxRequestsInFlight: 100,
	}))
	health := delayq.HealthHandler(g.Server())
	for _, path := range []string{"/livez", "/readyz", "/healthz"} {
		mux.Handle(path, health)
	}
	return servePage(address, mux, log)
}
