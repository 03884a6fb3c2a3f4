package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/friend"
)

// library has what delayq does for its friends.
var library = friend.Of(new(delayq.Client))

// The bounds that no flag changes.
const (
	mostJobs     = 1000                   // in one request
	mostTake     = 100                    // jobs of one take
	mostTaken    = 4 << 20                // bytes of payloads of one take, and one job more
	mostWait     = time.Minute            // of a take and of a result
	leastWait    = 250 * time.Millisecond // of a take: as long as a look at Redis may take
	callTimeout  = 10 * time.Second       // of a call to Redis
	bodyTimeout  = 15 * time.Second       // within which a body arrives
	writeTimeout = 30 * time.Second       // within which an answer is read
	leastLease   = time.Second
	usedLease    = 30 * time.Second
	mostLease    = 12 * time.Hour
)

// A Config is what a gateway is made with.
type Config struct {
	Redis       redis.UniversalClient
	Prefix      string
	Client      *delayq.Client
	Tokens      *Tokens
	Log         *slog.Logger
	Hooks       []delayq.Hook // of its server
	MaxBody     int64         // bytes of a request
	MaxLeases   int           // jobs that consumers have, together
	MaxWaiters  int           // takes and waits for results at the same time
	MaxRequests int           // others at the same time
	MaxTopics   int           // from which consumers take at the same time
	TokenShare  int           // percent of each of these that one token of several can use
	Drain       time.Duration // for which consumers can settle jobs at the end
}

// A Gateway is the handler of a queue for HTTP.
type Gateway struct {
	Config
	Metrics *Metrics

	instance [8]byte // of this process, in the tokens of its leases
	server   *delayq.Server
	busy     chan struct{} // requests that are answered at once
	waits    chan struct{} // requests that wait
	refusals refusals
	slack    time.Duration   // in tests: how much longer than else a body or an answer takes
	over     context.Context // done: the gateway is stopping
	end      context.CancelFunc

	mu     sync.Mutex // guards the rest, and what leases and topics say
	topics map[string]*topic
	leases map[string]*lease
	past   past
	wanted int               // jobs that takers wait for
	held   int               // jobs that consumers have
	bytes  int64             // of bodies and answers that are on their way
	shares map[string]*share // by the name of the token
}

// New returns a gateway. It does nothing before Run.
func New(c Config) *Gateway {
	g := &Gateway{
		Config: c, Metrics: newMetrics(), busy: make(chan struct{}, c.MaxRequests), waits: make(chan struct{}, c.MaxWaiters),
		refusals: refusals{log: c.Log}, topics: make(map[string]*topic), leases: make(map[string]*lease),
		shares: make(map[string]*share),
	}
	_, _ = rand.Read(g.instance[:]) // it never fails
	g.over, g.end = context.WithCancel(context.Background())
	g.server = delayq.NewServer(c.Redis, delayq.Prefix(c.Prefix), delayq.Drain(c.Drain), delayq.Logger(c.Log),
		delayq.Hooks(append(slices.Clone(c.Hooks), runs{g})...))
	library.Bare(g.server)
	g.Metrics.of(g)
	return g
}

// Server returns the server that takes jobs for consumers, for its health.
func (g *Gateway) Server() *delayq.Server { return g.server }

// Run serves consumers until ctx is done. Then takers get an empty answer, and consumers have the
// time of Drain to settle the jobs that they have. What is left goes back to ready.
func (g *Gateway) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	defer loops.Wait()
	defer g.end()
	defer context.AfterFunc(ctx, g.end)()
	loops.Go(g.reap)
	return g.server.Run(ctx)
}

// A route is a method and a path of the API. Segments in braces are {topic} and {id}.
type route struct {
	method, path string
	rights       []Right // of which the token needs one in the topic; none: the handler looks
	waits        bool    // it waits for jobs, and not only for Redis
	reads        bool    // it has a body
	public       bool    // it needs no token
	query        []string
	do           func(*Gateway, *call) error
	statuses     []int // beside those that every route has
}

// everywhere are the statuses that each route that is not public can answer.
var everywhere = []int{400, 401, 403, 404, 422, 429, 500, 503}

// body are those of a route that reads a body.
var body = []int{408, 413, 415}

var routes = []route{
	{method: "POST", path: "/v1/topics/{topic}/jobs", rights: []Right{Produce}, reads: true, do: (*Gateway).enqueue, statuses: append([]int{201, 207, 409}, body...)},
	{method: "GET", path: "/v1/topics/{topic}/jobs/{id}", rights: []Right{Produce, Operate}, query: []string{"base64"}, do: (*Gateway).get, statuses: []int{200}},
	{method: "PATCH", path: "/v1/topics/{topic}/jobs/{id}", rights: []Right{Produce, Operate}, reads: true, do: (*Gateway).patch, statuses: append([]int{204, 409}, body...)},
	{method: "DELETE", path: "/v1/topics/{topic}/jobs/{id}", rights: []Right{Produce, Operate}, query: []string{"tombstone"}, do: (*Gateway).cancel, statuses: []int{200, 409}},
	{method: "GET", path: "/v1/topics/{topic}/jobs/{id}/result", rights: []Right{Produce, Operate}, waits: true, query: []string{"wait", "base64"}, do: (*Gateway).result, statuses: []int{200, 202, 409, 410}},
	{method: "POST", path: "/v1/topics/{topic}/take", rights: []Right{Consume}, waits: true, reads: true, do: (*Gateway).take, statuses: append([]int{200}, body...)},
	{method: "POST", path: "/v1/topics/{topic}/settle", rights: []Right{Consume}, reads: true, do: (*Gateway).settle, statuses: append([]int{200, 207, 409}, body...)},
	{method: "POST", path: "/v1/topics/{topic}/extend", rights: []Right{Consume}, reads: true, do: (*Gateway).extend, statuses: append([]int{200, 207, 409}, body...)},
	{method: "POST", path: "/v1/topics/{topic}/inputs", rights: []Right{Consume}, reads: true, do: (*Gateway).inputs, statuses: append([]int{200, 409}, body...)},
	{method: "POST", path: "/v1/flows", reads: true, do: (*Gateway).flow, statuses: append([]int{201, 409}, body...)},
	{method: "GET", path: "/v1/openapi.json", public: true, do: (*Gateway).document, statuses: []int{200}},
	{method: "GET", path: "/healthz", public: true, do: (*Gateway).alive, statuses: []int{200}},
}

// A call is a request that is being answered.
type call struct {
	w       http.ResponseWriter
	r       *http.Request
	control *http.ResponseController
	ctx     context.Context
	who     *subject
	query   url.Values
	topic   string
	id      string
	raw     []byte // its body
	bytes   int64  // that Gateway.hold has counted
	gateway *Gateway
	leave   func() // the gateway no longer works on it
}

// ServeHTTP answers a request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	seen := &watched{ResponseWriter: w}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	name := "none"
	defer func() { g.Metrics.note(name, seen.status, time.Since(began)) }()
	c := &call{gateway: g, w: seen, r: r, control: http.NewResponseController(w), ctx: r.Context()}
	found, err := g.enter(c)
	if found != nil {
		name = found.method + " " + found.path
	}
	if err == nil {
		err = g.bounded(found, c)
	}
	if err == nil || seen.status != 0 {
		return
	}
	p := problemOf(err)
	if r.Context().Err() != nil && p.Status == http.StatusServiceUnavailable {
		return // the client has gone
	}
	if p.Status >= http.StatusInternalServerError && p.Type != problemPrefix+stopping.name {
		g.refusals.warn("request failed", "route", name, "err", err)
	}
	p.write(seen)
}

// enter returns the route of a request that may be carried out.
func (g *Gateway) enter(c *call) (*route, error) {
	found, allowed, err := c.route()
	if err != nil {
		return nil, err
	}
	if found != nil && found.public {
		return found, nil
	}
	if strings.Contains(c.r.URL.RawQuery, "access_token") {
		return found, newProblem(badRequest, "a token in a URL gets into logs: send it as Authorization: Bearer")
	}
	scheme, token, _ := strings.Cut(c.r.Header.Get("Authorization"), " ")
	if c.who = g.Tokens.of(strings.TrimSpace(token)); c.who == nil || !strings.EqualFold(scheme, "Bearer") || len(c.r.Header.Values("Authorization")) != 1 {
		if token != "" {
			g.refusals.warn("token refused", "from", c.r.RemoteAddr)
		}
		return found, newProblem(unauthorized, "send the header Authorization: Bearer with a token of this gateway")
	}
	switch {
	case found == nil && len(allowed) > 0:
		p := newProblem(badMethod, "allowed are %s", strings.Join(allowed, ", "))
		p.allow = strings.Join(allowed, ", ")
		return nil, p
	case found == nil:
		return nil, newProblem(noRoute, "/v1/openapi.json lists the paths")
	case found.rights != nil && !c.who.may(c.topic, found.rights...):
		return found, newProblem(forbidden, "%q has no right to %s in topic %q", c.who.name, joined(found.rights), c.topic)
	}
	if strings.Contains(found.path, "{topic}") {
		if _, err := library.NewJob(delayq.NewJob{Topic: c.topic}, time.Now()); err != nil {
			return found, blamed("topic", err)
		}
	}
	if c.query, err = url.ParseQuery(c.r.URL.RawQuery); err != nil {
		return found, newProblem(badRequest, "the query of the URL cannot be read")
	}
	for name := range c.query {
		if !slices.Contains(found.query, name) {
			return found, wrong(name, "there is no such parameter of the URL")
		}
	}
	return found, nil
}

func joined(rights []Right) string {
	words := make([]string, len(rights))
	for i, r := range rights {
		words[i] = string(r)
	}
	return strings.Join(words, " or ")
}

// route finds the route of a request, and what the path names. Without one, it returns the methods
// that the path has. A segment can have any bytes, also an encoded slash.
func (c *call) route() (found *route, allowed []string, err error) {
	segments := strings.Split(c.r.URL.EscapedPath(), "/")
	for i, s := range segments {
		if segments[i], err = url.PathUnescape(s); err != nil {
			return nil, nil, newProblem(badRequest, "the path cannot be read")
		}
	}
	for i := range routes {
		r := &routes[i]
		parts := strings.Split(r.path, "/")
		if len(parts) != len(segments) {
			continue
		}
		fits, topic, id := true, "", ""
		for n, part := range parts {
			switch {
			case part == "{topic}":
				topic = segments[n]
			case part == "{id}":
				id = segments[n]
			default:
				fits = fits && part == segments[n]
			}
		}
		switch {
		case !fits:
		case r.method != c.r.Method:
			allowed = append(allowed, r.method)
		default:
			c.topic, c.id = topic, id
			return r, nil, nil
		}
	}
	return nil, allowed, nil
}

// bounded carries out a request if not too many others are under way. These are only those that the
// gateway works on: a request that arrives slowly is not one yet, and one whose answer is read
// slowly is none any more.
func (g *Gateway) bounded(r *route, c *call) error {
	if r.public {
		return r.do(g, c)
	}
	if strings.Contains(r.path, "{id}") && c.id == "" {
		return wrong("id", "the path names no job")
	}
	defer g.drop(c)
	if r.reads { // before it is admitted: a slow client keeps nobody else waiting
		if err := g.readAll(c); err != nil {
			return err
		}
	}
	leave, err := g.admit(c, r.waits)
	if err != nil {
		return err
	}
	c.leave = leave
	defer leave()
	if !r.waits {
		c.patient(callTimeout)
		ctx, cancel := context.WithTimeout(c.ctx, callTimeout)
		defer cancel()
		c.ctx = ctx
	}
	return r.do(g, c)
}

// read decodes the body of a request.
func (g *Gateway) read(c *call, v any) error {
	if err := strictly(c.raw, v); err != nil {
		return problemOfBody(err, g.MaxBody)
	}
	return nil
}

// readAll reads the body of a request, which is JSON.
func (g *Gateway) readAll(c *call) (err error) {
	media, _, _ := strings.Cut(c.r.Header.Get("Content-Type"), ";")
	if media = strings.ToLower(strings.TrimSpace(media)); media != "application/json" || c.r.Header.Get("Content-Encoding") != "" {
		return newProblem(badMedia, "expected Content-Type: application/json without a Content-Encoding, as curl --json sends it")
	}
	c.raw, err = g.receive(c)
	switch {
	case err != nil:
		return problemOfBody(err, g.MaxBody)
	case !utf8.Valid(c.raw):
		return newProblem(badRequest, "the body is not UTF-8: bytes of other kinds belong into payload_base64")
	}
	return nil
}

// answer writes a reply. While its client reads it, others are served.
func (c *call) answer(status int, v any) error {
	var text bytes.Buffer
	if v != nil {
		if err := encode(&text, v); err != nil {
			return err
		}
	}
	if c.gateway.hold(c, int64(text.Len())) {
		c.leave()
	}
	_ = c.control.SetWriteDeadline(time.Now().Add(writeTimeout + c.gateway.slack)) // or that of the server holds
	if v == nil {
		c.w.WriteHeader(status)
		return nil
	}
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(status)
	_, err := c.w.Write(text.Bytes())
	return err
}

// alive says that the process answers.
func (g *Gateway) alive(c *call) error {
	c.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, err := io.WriteString(c.w, "ok\n")
	return err
}

// watched notes the status of an answer.
type watched struct {
	http.ResponseWriter
	status int
}

func (w *watched) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *watched) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets a ResponseController reach the connection.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// refusals logs what strangers can cause, once a second at most.
type refusals struct {
	log  *slog.Logger
	mu   sync.Mutex
	last time.Time
	left int
}

func (r *refusals) warn(text string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.last) < time.Second {
		r.left++
		return
	} else if r.left > 0 {
		args = append(args, "more", r.left)
		r.last, r.left = now, 0
	} else {
		r.last = now
	}
	r.log.Warn(text, args...)
}
