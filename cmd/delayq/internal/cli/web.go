package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq/cmd/delayq/internal/part"
)

// pageEvery is how often open pages are refreshed.
const pageEvery = 2 * time.Second

// A webFlags holds the flags of the command web.
type webFlags struct {
	listen   string
	authFile string
	header   string
	proxies  []string
	noAuth   bool
	addUser  string
	origins  []string
	readOnly bool
	badge    string
	language string
	every    time.Duration
}

func (a *app) webCommand() *cobra.Command {
	f := webFlags{listen: "127.0.0.1:9465", every: pageEvery}
	cmd := &cobra.Command{
		Use:   "web",
		Short: "Serve the web page: look at topics and act on jobs in a browser",
		Long: `Serve the web page of the queue. It shows topics, jobs, failures, servers and
schedules, says why a job is not running, and acts on jobs, one by one or on all that
match. With --read-only it cannot act. docs/howto/web-page.md is about it.

Without a login, it listens on a loopback address only. On another address it needs
--auth-file, or --trust-user-header with --trust-proxy, or an explicit --no-auth.
It speaks HTTP: beyond one machine, put it behind a proxy that speaks HTTPS.

A password file has one user a line, as name:hash, with a hash of bcrypt. --add-user
writes such a line. A user with :read behind the hash may only read. Others must be able
neither to read nor to write the file. SIGHUP loads it anew. One password is checked at a
time, and the log has who was refused.
A trusted header names the user, who was logged in by a proxy; requests that do not come
from --trust-proxy are refused. The user is the actor of the audit; without a login that
is --actor. Without a login and without --no-auth, only localhost and loopback addresses
are answered as the host of a request.

/healthz answers 200 as long as the process lives. SIGINT and SIGTERM end it with exit
code 0, and stop bulk runs. A mistake in the password file has the exit code 78.`,
		Example: `  delayqd web
  delayqd web --read-only --badge production
  delayqd web --add-user ann >> users
  delayqd web --listen :9465 --auth-file users
  delayqd web --listen :9465 --trust-user-header X-Forwarded-User --trust-proxy 10.0.0.0/8`,
		Args:              counted(0, 0, "no arguments"),
		ValidArgsFunction: a.completeArgs(nothing),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !a.tabular() {
				return usage("-o %s: web serves pages; each has a .json beside it", a.format)
			}
			return a.web(cmd.Context(), &f)
		},
	}
	s := cmd.Flags()
	s.StringVar(&f.listen, "listen", f.listen, "`address` to listen on; port 0 is a free one")
	s.StringVar(&f.authFile, "auth-file", "", "`file` with the users and passwords of a login (basic authentication)")
	s.StringVar(&f.addUser, "add-user", "", "write a line for --auth-file, and do nothing else: this `name`, with the password from stdin")
	s.StringVar(&f.header, "trust-user-header", "", "`header` in which a proxy sends the name of the user")
	s.StringSliceVar(&f.proxies, "trust-proxy", nil, "`addresses` of the proxies, such as 10.0.0.0/8; can be repeated")
	s.BoolVar(&f.noAuth, "no-auth", false, "no login, also on an address that others can reach, and for every name of this machine")
	s.StringSliceVar(&f.origins, "trusted-origin", nil, "`origin` of the page behind a proxy that changes Host; can be repeated")
	s.BoolVar(&f.readOnly, "read-only", false, "show, and do not act; with --add-user: the user may only read")
	s.StringVar(&f.badge, "badge", "", "`word` beside the prefix, for example production")
	s.StringVar(&f.language, "language", "", "en or zh-CN; without it the browser decides")
	s.Var(&duration{&f.every}, "every", "how often open pages are refreshed, however many there are")
	return cmd
}

// web serves the page until it is asked to end.
func (a *app) web(ctx context.Context, f *webFlags) (err error) {
	if f.addUser != "" {
		return a.addUser(f.addUser, f.readOnly)
	}
	login, err := f.login(a.actor)
	if err != nil {
		return err
	}
	login.log = slog.New(slog.NewTextHandler(a.err, nil))
	insp, err := a.inspector()
	if err != nil {
		return err
	}
	if err := a.validPrefix(ctx); err != nil { // before Redis is asked: it may be away
		return err
	}
	setup := part.PageSetup{
		Inspector: insp, Actor: login.user, Act: login.mayAct, Every: f.every, Badge: f.badge, Language: f.language, Origins: f.origins,
	}
	if !f.readOnly {
		if setup.Client, err = a.queue(); err != nil {
			return err
		}
	}
	page, err := part.NewPage(&setup)
	if err != nil {
		return usage("%v", err)
	}
	defer page.Close()
	server, err := servePage(f.listen, login.protect(page), login.log)
	if err != nil {
		return err
	}
	a.say("page of prefix %q on http://%s/", a.prefix, server.listener.Addr())
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	if login.users != nil {
		defer login.reload(ctx)()
	}
	return server.until(ctx)
}

// reload makes SIGHUP load the password file anew, until the function that it returns is called.
func (l *login) reload(ctx context.Context) (end func()) {
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
			if err := l.users.load(); err != nil {
				l.log.Error("the password file was not loaded, and the users stay", "err", err)
				continue
			}
			l.log.Info("the password file was loaded")
		}
	})
	return func() {
		signal.Stop(hups)
		cancel()
		loop.Wait()
	}
}

// servePage starts a server of the page.
func servePage(address string, page http.Handler, log *slog.Logger) (*metricsServer, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, &exitCode{exitError, err.Error()}
	}
	s := &metricsServer{Server: new(http.Server), listener: l, ended: make(chan error, 1)}
	s.Handler, s.ErrorLog = page, slog.NewLogLogger(log.Handler(), slog.LevelWarn)
	s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = 5*time.Second, 30*time.Second, time.Minute, 2*time.Minute
	s.MaxHeaderBytes = 64 << 10
	go func() { s.ended <- s.Serve(l) }()
	return s, nil
}

// A login decides who may use the page.
type login struct {
	log     *slog.Logger
	actor   string // if nobody logs in
	local   bool   // only for names of this machine
	hosts   map[string]bool
	users   *users // nil: there is no password file
	header  string
	proxies []netip.Prefix
}

// login checks the flags about it.
func (f *webFlags) login(actor string) (*login, error) {
	host, _, err := net.SplitHostPort(f.listen)
	if err != nil {
		return nil, usage("the address %q must be HOST:PORT or :PORT: %v", f.listen, err)
	}
	l := &login{log: slog.New(slog.DiscardHandler), actor: actor, header: f.header, hosts: make(map[string]bool)}
	switch {
	case f.authFile != "" && f.header != "":
		return nil, usage("--auth-file and --trust-user-header exclude each other")
	case f.noAuth && (f.authFile != "" || f.header != ""):
		return nil, usage("--no-auth excludes --auth-file and --trust-user-header")
	case (f.header != "") != (len(f.proxies) > 0):
		return nil, usage("--trust-user-header and --trust-proxy need each other: anybody can send a header")
	case f.authFile != "":
		if l.users, err = newUsers(f.authFile); err != nil {
			return nil, err
		}
	case f.header != "":
		for _, text := range f.proxies {
			p, err := netip.ParsePrefix(text)
			if addr, one := netip.ParseAddr(text); one == nil {
				p, err = netip.PrefixFrom(addr, addr.BitLen()), nil
			}
			if err != nil {
				return nil, usage("--trust-proxy %q: must be an address or a range such as 10.0.0.0/8", text)
			}
			l.proxies = append(l.proxies, p.Masked())
		}
	case loopback(host):
		l.local = !f.noAuth
	case !f.noAuth:
		return nil, usage("others can reach %s: it needs --auth-file, or --trust-user-header with --trust-proxy, or an explicit --no-auth", f.listen)
	}
	for _, origin := range f.origins {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" {
			return nil, usage("--trusted-origin %q: must be a scheme and a host, such as https://admin.example.com", origin)
		}
		l.hosts[strings.ToLower(u.Hostname())] = true
	}
	return l, nil
}

// loopback reports whether a host is this machine, as seen from itself. An address with a zone is
// not: what follows the % can be any name.
func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback() && ip.Zone() == ""
}

// userKey is the key of the user in the context of a request.
type userKey struct{}

// user returns who sent a request.
func (l *login) user(r *http.Request) string {
	if name, ok := r.Context().Value(userKey{}).(string); ok {
		return name
	}
	return l.actor
}

// protect lets those requests pass to a page that are logged in.
func (l *login) protect(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = fmt.Fprintln(w, "ok") // or the other side has gone
			return
		}
		name, status := l.enter(r)
		switch status {
		case http.StatusOK:
		case http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", `Basic realm="delayq", charset="UTF-8"`)
			http.Error(w, "log in", status)
			return
		default:
			http.Error(w, http.StatusText(status), status)
			return
		}
		if name != "" {
			r = r.WithContext(context.WithValue(r.Context(), userKey{}, name))
		}
		page.ServeHTTP(w, r)
	})
}

// enter returns the user of a request, or the status that refuses it.
func (l *login) enter(r *http.Request) (string, int) {
	switch {
	case l.users != nil:
		name, password, ok := r.BasicAuth()
		if !ok {
			return "", http.StatusUnauthorized
		}
		status := l.users.enter(r.Context(), name, password)
		if status != http.StatusOK {
			l.log.Warn("login refused", "user", name, "from", r.RemoteAddr, "status", status)
		}
		return name, status
	case l.header != "":
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		names := r.Header.Values(l.header)
		if err != nil || len(names) != 1 || names[0] == "" {
			return "", http.StatusForbidden
		}
		for _, p := range l.proxies {
			if p.Contains(from.Addr().Unmap().WithZone("")) {
				return names[0], http.StatusOK
			}
		}
		return "", http.StatusForbidden
	case l.local:
		// Another site can have a name that leads here (DNS rebinding). Then Host is that name.
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if host = strings.ToLower(strings.Trim(host, "[]")); !loopback(host) && !l.hosts[host] {
			return "", http.StatusMisdirectedRequest
		}
	}
	return "", http.StatusOK
}
