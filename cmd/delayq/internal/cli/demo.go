package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/part"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/prom"
)

func (a *app) demoCommand() *cobra.Command {
	var length time.Duration
	metrics, page := "127.0.0.1:0", demoPageOn
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Try everything on a made-up shop, without a Redis",
		Long: `Start an embedded Redis with a made-up shop, and watch it with top: orders that are
cancelled unless they are paid, reminders, emails that fail, invoices of tenants that
take turns, a topic that is paused, one without a server, and schedules. Without a
terminal, it writes one line a second instead of top.

The Redis listens on a free port of 127.0.0.1 until the demo ends. Its address is in
the first line, so that other commands can be tried on it. The lines after it have the
address of the shop's metrics for Prometheus and, in delayqd, that of its web page.`,
		Example:           "  delayq demo\n  delayq demo --for 20s\n  delayq demo --metrics 127.0.0.1:9464",
		Args:              counted(0, 0, "no arguments"),
		ValidArgsFunction: a.completeArgs(nothing),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case cmd.Flags().Changed("for") && length <= 0:
				return usage("--for %v: must be more than 0s", length)
			case cmd.Root().PersistentFlags().Changed("redis"):
				return usage("--redis: demo has a Redis of its own")
			case !a.tabular():
				return usage("-o %s: demo is for people; use delayq stats -o %s --redis with the address of a demo", a.format, a.format)
			}
			if cmd.Flags().Changed("web") && !part.Whole() {
				return usage("--web: the page is a part of delayqd: %s", getWhole())
			}
			if host, _, err := net.SplitHostPort(page); err != nil || !loopback(host) {
				return usage("--web %q: must be a loopback address with a port, such as 127.0.0.1:0", page)
			}
			return a.demo(cmd.Context(), length, metrics, page)
		},
	}
	cmd.Flags().Var(&duration{&length}, "for", "end after this time; without it: when you leave")
	cmd.Flags().StringVar(&metrics, "metrics", metrics, "`address` of the metrics; port 0 is a free one")
	cmd.Flags().StringVar(&page, "web", page, "loopback `address` of the page, in delayqd; port 0 is a free one. If the default is taken, a free one is used")
	return cmd
}

// demo runs the shop until it is left, or for a time.
func (a *app) demo(parent context.Context, length time.Duration, metricsOn, pageOn string) (err error) {
	ctx, leave := context.WithCancel(parent)
	defer leave()
	counts := prom.NewMetrics()
	q, err := delayqtest.Open(delayq.Prefix(a.prefix), delayq.Hooks(counts))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	address, shut, err := listen(q)
	if err != nil {
		return err
	}
	defer shut()
	a.connection = connection{url: "redis://" + address, prefix: a.prefix, timeout: a.timeout}

	reg := prometheus.NewRegistry()
	log := slog.New(slog.DiscardHandler) // the terminal belongs to top
	reg.MustRegister(counts, prom.NewCollector(q.Inspector, prom.Logger(log)))
	metrics, err := serveMetrics(metricsOn, reg, log, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, metrics.end()) }()
	pageText := "get its page, which delayqd demo has, with\n  " + getWhole()
	if part.Whole() {
		page, err := serveDemoPage(q, pageOn, a.actor, log)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, page.end()) }()
		pageText = "open its page\n  http://" + page.listener.Addr().String() + "/"
	}

	s := &shop{ctx: ctx, queue: q, hooks: delayq.Hooks(counts)}
	defer func() { leave(); s.close() }()
	if err := s.open(); err != nil {
		return demoEnded(ctx, parent, err)
	}
	if length > 0 { // from now on, however long the machine took to open the shop
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, length)
		defer cancel()
	}
	if a.out.terminal && a.in.terminal && a.getenv("TERM") != "dumb" {
		a.say("a made-up shop; %s", pageText)
		m, err := a.newTop(ctx, address)
		if err != nil {
			return err
		}
		return a.watch(m)
	}
	a.say("a made-up shop on an embedded Redis; look into it with\n  delayq topics --redis %s%s\nscrape its metrics from\n  %s\nand %s", a.url, a.prefixFlag(), metrics.url(), pageText)
	return demoEnded(ctx, parent, a.totals(ctx))
}

// demoPageOn is where the page of a demo is, unless it is taken.
const demoPageOn = "127.0.0.1:9465"

// A demoPage is the web page of the shop.
type demoPage struct {
	*metricsServer
	page part.Page
}

// serveDemoPage starts it.
func serveDemoPage(q *delayqtest.Queue, address, actor string, log *slog.Logger) (*demoPage, error) {
	l := &login{actor: actor, local: true}
	page, err := part.NewPage(&part.PageSetup{Inspector: q.Inspector, Client: q.Client, Actor: l.user, Every: pageEvery, Badge: "demo"})
	if err != nil {
		return nil, err
	}
	server, err := servePage(address, l.protect(page), log)
	if err != nil && address == demoPageOn { // another demo has it
		server, err = servePage("127.0.0.1:0", l.protect(page), log)
	}
	if err != nil {
		page.Close()
		return nil, err
	}
	return &demoPage{server, page}, nil
}

// end ends the page and the bulk runs that it has begun.
func (d *demoPage) end() error {
	err := d.metricsServer.end()
	d.page.Close()
	return err
}

// prefixFlag is what other commands need in order to find the shop.
func (a *app) prefixFlag() string {
	if a.prefix == "delayq" {
		return ""
	}
	return " --prefix " + quoted(a.prefix)
}

// demoEnded returns no error if the time of the demo is over.
func demoEnded(ctx, parent context.Context, err error) error {
	if parent.Err() == nil && ctx.Err() != nil {
		return nil
	}
	return err
}

// totals writes the sums over all topics once a second.
func (a *app) totals(ctx context.Context) error {
	m := &top{a: a}
	insp, err := a.inspector()
	if err != nil {
		return err
	}
	for {
		stats, err := insp.Stats(ctx)
		if err != nil {
			return err
		}
		m.sample(topSample{stats: stats, ended: time.Now()})
		var sum topicRecord
		for _, t := range m.topics {
			sum.Scheduled += t.Scheduled
			sum.Ready += t.Ready
			sum.Done += t.Done
		}
		last := m.totals[len(m.totals)-1]
		_, err = fmt.Fprintf(a.stdout(), "%s  in %s/s  out %s/s  failed %s/s  scheduled %s  ready %s  running %s  dead %s  overdue %s\n",
			a.when(m.at), perSecond(last.Enqueued), perSecond(last.Finished), perSecond(last.Failed), number(sum.Scheduled), number(sum.Ready),
			number(last.running), number(last.dead), number(last.overdue))
		if err == nil {
			err = a.flush()
		}
		if err == nil {
			err = wait(ctx, time.Second)
		}
		if err != nil {
			return err
		}
	}
}

// listen lets other processes reach an embedded Redis. It returns its address, and what ends that.
func listen(q *delayqtest.Queue) (address string, shut func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			q.Miniredis.Server().ServeConn(conn) // which is closed with the queue
		}
	})
	return l.Addr().String(), func() {
		_ = l.Close() // it listens, so it can be closed
		accepting.Wait()
	}, nil
}

// quiet is the logger of the servers: their failures are part of the show.
var quiet = delayq.Logger(slog.New(slog.DiscardHandler))
