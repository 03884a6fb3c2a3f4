package cli

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/part"
	"github.com/delayq/delayq/cmd/delayq/internal/worker"
	"github.com/delayq/delayq/prom"
)

func (a *app) workerCommand() *cobra.Command {
	var config string
	var check bool
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Post webhooks, run commands, execute SQL and send mails, as a file says",
		Long: `Serve the topics of a file with handlers that are ready-made: they post webhooks, run
commands, execute SQL statements and send mails. docs/worker.md describes the file.

--check looks for mistakes in the file, and in what it names: files, programs,
variables of the environment. It prints each one with its line, and connects to
nothing. The exit code is 78 if there is one.

The file can say how to reach Redis. Flags and the environment win.

SIGHUP loads the file anew. Running jobs keep what they had. A file with a mistake
changes nothing, and the log has the mistakes. SIGINT and SIGTERM let running jobs
end, for as long as the file says, and end the worker with exit code 0.`,
		Example: `  delayqd worker --config worker.yaml --check
  delayqd worker --config /etc/delayq/worker.yaml`,
		Args:              counted(0, 0, "no arguments"),
		ValidArgsFunction: a.completeArgs(nothing),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !a.tabular():
				return usage("-o %s: worker has no output but its log", a.format)
			case config == "":
				return usage("--config is needed: the file that says what topics do")
			}
			load := func() (*worker.File, []worker.Mistake) { return worker.Load(config, a.getenv) }
			if check {
				return a.checkWorker(config, load)
			}
			return a.worker(cmd, config, load)
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "the `file`")
	cmd.Flags().BoolVar(&check, "check", false, "look for mistakes in the file, and do nothing else")
	return cmd
}

// checkWorker writes the mistakes in a file, or what it says.
func (a *app) checkWorker(config string, load func() (*worker.File, []worker.Mistake)) error {
	file, mistakes := load()
	for _, m := range mistakes {
		if _, err := fmt.Fprintln(a.stdout(), safe(m.String(), true)); err != nil {
			return err
		}
	}
	if len(mistakes) > 0 {
		return badFile("%s has %s", config, count(len(mistakes), "mistake"))
	}
	for _, t := range file.Topics {
		text := fmt.Sprintf("%s: %s, %s, concurrency %d", t.Name, t.Kind, t.Detail, t.Concurrency())
		if n := t.Schedules(); n > 0 {
			text += ", " + count(n, "schedule")
		}
		if _, err := fmt.Fprintln(a.stdout(), safe(text, true)); err != nil {
			return err
		}
	}
	a.say("%s has no mistakes: %s, %s", config, count(len(file.Topics), "topic"), count(file.Schedules(), "schedule"))
	return nil
}

// worker serves the topics of a file until it is asked to end.
func (a *app) worker(cmd *cobra.Command, config string, load func() (*worker.File, []worker.Mistake)) (err error) {
	hups := make(chan os.Signal, 1)
	signal.Notify(hups, syscall.SIGHUP) // which would end the process
	defer signal.Stop(hups)
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM)
	defer stop()

	file, mistakes := load()
	if len(mistakes) > 0 {
		for _, m := range mistakes {
			a.say("%s", m)
		}
		return badFile("%s has %s", config, count(len(mistakes), "mistake"))
	}
	a.connectAs(cmd, &file.Redis)
	client, err := a.queue()
	if err != nil {
		return err
	}
	insp, err := a.inspector()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(a.err, nil))
	counts := prom.NewMetrics()
	server := delayq.NewServer(a.rdb, delayq.Prefix(a.prefix), delayq.Lease(file.Server.Lease), delayq.Drain(file.Server.Drain),
		delayq.Logger(log), delayq.Hooks(counts))
	w := &worker.Worker{Client: client, Inspector: insp, Log: log, Load: load}
	if err := w.Start(server, file); err != nil {
		return &exitCode{exitError, errorText(err)}
	}
	if file.Server.Listen != "" {
		page, err := serveWorker(file.Server.Listen, server, counts, log)
		if err != nil {
			return err
		}
		defer func() {
			if bad := page.end(); err == nil {
				err = bad
			}
		}()
		a.say("livez, readyz, healthz and metrics on http://%s/", page.listener.Addr())
	}
	a.say("worker of %s and %s from %s, prefix %q", count(len(file.Topics), "topic"), count(file.Schedules(), "schedule"), config, a.prefix)

	reload := make(chan struct{})
	go func() {
		for {
			select {
			case <-hups:
			case <-ctx.Done():
				return
			}
			select {
			case reload <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return w.Run(ctx, reload)
}

// connectAs takes from a file how to reach Redis, where neither a flag nor the environment says it.
func (a *app) connectAs(cmd *cobra.Command, r *worker.Redis) {
	given := func(flag string) bool {
		return cmd.Root().PersistentFlags().Changed(flag) || a.getenv(envPrefix+strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))) != "" ||
			flag == "redis" && a.getenv("REDIS_URL") != ""
	}
	for flag, value := range map[string]struct {
		to   *string
		from string
	}{
		"redis": {&a.url, r.URL}, "prefix": {&a.prefix, r.Prefix}, "tls-ca": {&a.ca, r.CA}, "tls-cert": {&a.cert, r.Cert}, "tls-key": {&a.key, r.Key},
	} {
		if value.from != "" && !given(flag) {
			*value.to = value.from
		}
	}
	if r.Cluster && !given("cluster") {
		a.cluster = true
	}
	if a.password == "" && a.passwordFile == "" {
		a.password = r.Password
	}
}

// serveWorker serves the health and the metrics of a worker.
func serveWorker(address string, server *delayq.Server, counts *prom.Metrics, log *slog.Logger) (*metricsServer, error) {
	reg := prometheus.NewRegistry()
	if err := reg.Register(counts); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError), EnableOpenMetrics: true, MaxRequestsInFlight: 100,
	}))
	health := delayq.HealthHandler(server)
	for _, path := range []string{"/livez", "/readyz", "/healthz"} {
		mux.Handle(path, health)
	}
	return servePage(address, mux, log)
}

// taskCommands are about tasks without code.
func (a *app) taskCommands() []*cobra.Command {
	if !part.Whole() {
		return []*cobra.Command{a.taskCommand()}
	}
	return []*cobra.Command{a.taskCommand(), a.workerCommand()}
}
