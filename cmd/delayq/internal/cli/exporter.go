package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/prom"
)

func (a *app) exporterCommand() *cobra.Command {
	listen := "127.0.0.1:9464"
	topics, interval := 200, 5*time.Second
	cmd := &cobra.Command{
		Use:   "exporter",
		Short: "Serve the state of all topics to Prometheus",
		Long: `Serve /metrics to Prometheus: jobs by state, overdue jobs, what falls due within the next
hour, servers, schedules, and what has happened to jobs, of all topics of the prefix.
docs/metrics.md lists all metrics. It needs the rights of the role inspector.

It looks at the queue when it is scraped, and answers within 2 s. While Redis does not
answer, the state is absent and delayq_redis_up is 0. /healthz answers 200 as long as
the process lives. There is no login: --listen decides who can read the names of topics.
SIGINT and SIGTERM end it with exit code 0.`,
		Example:           "  delayq exporter\n  delayq exporter --listen :9464 --prefix shop",
		Args:              counted(0, 0, "no arguments"),
		ValidArgsFunction: a.completeArgs(nothing),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !a.tabular() {
				return usage("-o %s: exporter serves the format of Prometheus", a.format)
			}
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			none, cancel := context.WithCancel(cmd.Context())
			cancel() // before Redis is asked: it may be away
			if _, err := insp.Topics(none); errors.Is(err, delayq.ErrInvalid) {
				return err
			}
			log := slog.New(slog.NewTextHandler(a.err, nil))
			reg := prometheus.NewRegistry()
			if err := reg.Register(prom.NewCollector(insp, prom.MaxTopics(topics), prom.MinInterval(interval), prom.Logger(log))); err != nil {
				return usage("%v", err)
			}
			server, err := serveMetrics(listen, reg, log, nil)
			if err != nil {
				return err
			}
			a.say("metrics of prefix %q on %s", a.prefix, server.url())
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM)
			defer stop()
			return server.until(ctx)
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", listen, "`address` to listen on; port 0 is a free one")
	f.IntVar(&topics, "max-topics", topics, "how many topics have series of their own; the others share topic=\"_other\"")
	f.Var(&duration{&interval}, "min-interval", "shortest time between two looks at the queue, however many scrape")
	return cmd
}

// A metricsServer serves a registry over HTTP.
type metricsServer struct {
	*http.Server
	listener net.Listener
	ended    chan error
}

// serveMetrics starts a server.
// probes are the paths of more handlers, whose errors are answered with 503.
func serveMetrics(address string, reg *prometheus.Registry, log *slog.Logger, probes map[string]func() error) (*metricsServer, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, usage("the address %q must be HOST:PORT or :PORT: %v", address, err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, &exitCode{exitError, err.Error()} // it is not Redis that cannot be reached
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError), EnableOpenMetrics: true, MaxRequestsInFlight: 100,
	}))
	text := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = io.WriteString(w, text) // or the other side has gone
		}
	}
	mux.Handle("GET /healthz", text("ok\n"))
	for path, probe := range probes {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-store")
			if err := probe(); err != nil {
				w.Header().Set("Content-Type", "text/plain; charset=utf-8")
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = io.WriteString(w, safe(err.Error(), false)+"\n")
				return
			}
			text("ok\n")(w, r)
		})
	}
	mux.Handle("GET /{$}", text("delayq: /metrics for Prometheus, /healthz\n"))
	s := &metricsServer{Server: new(http.Server), listener: l, ended: make(chan error, 1)}
	s.Handler, s.ErrorLog = mux, slog.NewLogLogger(log.Handler(), slog.LevelWarn)
	s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = 5*time.Second, 10*time.Second, 30*time.Second, 2*time.Minute
	s.MaxHeaderBytes = 64 << 10
	go func() { s.ended <- s.Serve(l) }()
	return s, nil
}

// url returns the address of the metrics.
func (s *metricsServer) url() string { return "http://" + s.listener.Addr().String() + "/metrics" }

// until serves until ctx is done, and then ends the server.
func (s *metricsServer) until(ctx context.Context) error {
	select {
	case err := <-s.ended:
		return err
	case <-ctx.Done():
		return s.end()
	}
}

// end lets scrapes under way finish, for a few seconds.
func (s *metricsServer) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if s.Shutdown(ctx) != nil {
		_ = s.Close() // what is left has had its time
	}
	if err := <-s.ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
