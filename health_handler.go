package delayq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

const (
	pingEvery   = 2 * time.Second  // how often the handlers of a server ask Redis at most
	pingTimeout = 2 * time.Second  // how long Redis may take to answer
	lookEvery   = 10 * time.Second // how often healthz asks Redis about itself at most
	clockApart  = time.Second      // a difference of the clocks that healthz warns of
	fewTopics   = 100              // most topics in healthz
	fewLate     = 5                // most late loops in the text of livez
)

// HealthHandler returns a handler for the probes of Kubernetes, Docker and load balancers. It looks
// at the last element of the path, so it can be mounted under any prefix, with or without
// [http.StripPrefix]. It needs only the standard library.
//
//	livez    200 unless a loop of the server is late (see [Server.Health]) or Run has returned
//	readyz   200 if the server takes jobs and Redis has answered a PING within 2 s
//	healthz  JSON for people, with the status of readyz
//
// Otherwise the status is 503, and the body says why in one line. livez does not ask whether Redis
// answers, because a restart of all servers would not bring it back. It is 200 before Run is called
// and while Run waits for Redis. Once Run has returned, it is 503, because a Server cannot be run
// again: a process that goes on without it should be restarted. readyz is 503 before Run has
// reached Redis, while Redis is away, and from the beginning of the [Drain] on.
//
// All other paths are 404, and methods other than GET and HEAD are 405. Responses must not be
// cached. The texts contain IDs of jobs, names of topics and errors of Redis, but neither payloads
// nor passwords. See docs/howto/health-checks.md.
//
// Cost: livez makes no call to Redis. readyz makes one PING in 2 s over a connection of the server,
// however many probes there are; on a Cluster, one node answers it. healthz also makes one INFO and
// reads the heartbeats of all servers, at most once in 10 s. What the user has no right to is left
// out.
func HealthHandler(s *Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer func(context.Context, *Server) (ok bool, contentType, body string)
		switch path.Base(r.URL.Path) {
		case "livez":
			answer = livez
		case "readyz":
			answer = readyz
		case "healthz":
			answer = healthz
		default:
			http.NotFound(w, r)
			return
		}
		head := w.Header()
		head.Set("Cache-Control", "no-store")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			head.Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD are allowed", http.StatusMethodNotAllowed)
			return
		}
		ok, contentType, body := answer(r.Context(), s)
		head.Set("Content-Type", contentType)
		head.Set("X-Content-Type-Options", "nosniff")
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = fmt.Fprintln(w, body) // to a client that may be gone
	})
}

const plainText = "text/plain; charset=utf-8"

// verdict returns an answer in plain text.
func verdict(why string) (ok bool, contentType, body string) {
	if why == "" {
		return true, plainText, "ok"
	}
	return false, plainText, why
}

func livez(_ context.Context, s *Server) (ok bool, contentType, body string) {
	h := s.Health()
	switch h.State {
	case "":
		return verdict(errNoServer)
	case ServerStopped:
		return verdict("the server has stopped")
	}
	return verdict(lateText(h.Late))
}

const errNoServer = "there is no server: use NewServer"

// lateText says which loops are late. It is empty if none is.
func lateText(late []LateLoop) string {
	if len(late) == 0 {
		return ""
	}
	var which []string
	for _, l := range late[:min(len(late), fewLate)] {
		of := ""
		if l.Topic != "" {
			of = fmt.Sprintf(" of topic %q", l.Topic)
		}
		which = append(which, fmt.Sprintf("%s%s for %v", l.Name, of, l.Late.Round(time.Millisecond)))
	}
	if more := len(late) - len(which); more > 0 {
		which = append(which, fmt.Sprintf("%d more", more))
	}
	return "loops that do not turn: " + strings.Join(which, ", ")
}

func readyz(ctx context.Context, s *Server) (ok bool, contentType, body string) {
	h := s.Health()
	_, why := s.usable(ctx, h)
	return verdict(why)
}

// usable pings Redis, unless the server does not run. It returns the result and why the server does
// not take jobs, or "".
func (s *Server) usable(ctx context.Context, h Health) (p ping, why string) {
	switch h.State {
	case "":
		return p, errNoServer
	case ServerNew:
		return p, "the server has not been started"
	case ServerStarting:
		if h.Redis.Err != nil {
			return p, "the server waits for Redis: " + oneLine(h.Redis.Err)
		}
		return p, "the server waits for Redis"
	case ServerStopped:
		return p, "the server has stopped"
	}
	p, err := s.pings.get(ctx, pingEvery, s.ping)
	switch {
	case h.State == ServerDraining:
		why = "the server is draining"
	case err != nil, !p.answered && p.err == nil:
		why = "Redis has not answered yet"
	case !p.answered:
		why = "Redis does not answer: " + oneLine(p.err)
	}
	return p, why
}

// oneLine returns the text of an error without line breaks.
func oneLine(err error) string { return strings.Join(strings.Fields(contain.Message(err)), " ") }

// A ping is the result of a PING.
type ping struct {
	answered bool
	took     time.Duration
	err      error // if it is not answered; nil: the cause is unknown
}

// ping asks Redis whether it answers.
func (s *Server) ping() (p ping) {
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	began := time.Now()
	err := s.engine.Calls.Ping(ctx).Err()
	p.took = time.Since(began)
	if p.answered = err == nil || !script.Away(err); !p.answered { // without the right to PING, NOPERM is an answer too
		p.err = err
	}
	return p
}

// A redisLook is what Redis says about itself and about the servers of the prefix.
type redisLook struct {
	version, role string
	warnings      []string
}

// lookAtRedis asks Redis about itself. What it does not tell is empty.
func (s *Server) lookAtRedis() (l redisLook) {
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	if text, err := s.engine.Calls.Info(ctx).Result(); err == nil {
		info := script.ParseInfo(text)
		l.version, l.role = info["redis_version"], info["role"]
		if policy := script.Evicting(info); policy != "" {
			l.warnings = append(l.warnings, "Redis evicts keys when its memory is full, and jobs with them: maxmemory-policy is "+policy)
		}
	}
	servers, err := readServers(ctx, s.engine.Calls, s.o.prefix)
	if err != nil {
		return l
	}
	var newest time.Time // by Redis's clock, which can differ from ours
	for _, one := range servers {
		if one.SeenAt.After(newest) {
			newest = one.SeenAt
		}
	}
	var versions []string
	for _, one := range servers {
		if newest.Sub(one.SeenAt) < serve.HeartbeatStale && one.Version != "" && !slices.Contains(versions, one.Version) {
			versions = append(versions, one.Version)
		}
	}
	if len(versions) > 1 {
		slices.Sort(versions)
		l.warnings = append(l.warnings, "servers of different versions: "+strings.Join(versions, ", "))
	}
	return l
}

// The JSON of healthz. Durations are seconds.
type (
	healthzBody struct {
		Schema   string         `json:"schema"`
		OK       bool           `json:"ok"`
		Reason   string         `json:"reason,omitempty"`
		Server   string         `json:"server,omitempty"`
		Version  string         `json:"version,omitempty"`
		State    ServerState    `json:"state,omitempty"`
		Since    *time.Time     `json:"since,omitempty"`
		Redis    *healthzRedis  `json:"redis,omitempty"`
		Warnings []string       `json:"warnings,omitempty"`
		Late     []healthzLate  `json:"late,omitempty"`
		Loops    []healthzLoop  `json:"loops,omitempty"`
		Workers  int            `json:"workers"`
		Running  int            `json:"running"`
		Held     int            `json:"held"`
		Count    int            `json:"topic_count"`
		Topics   []healthzTopic `json:"topics,omitempty"`
	}
	healthzRedis struct {
		Version    string     `json:"version,omitempty"`
		Role       string     `json:"role,omitempty"`
		RoundTrip  float64    `json:"round_trip,omitempty"`
		ClockAhead float64    `json:"clock_ahead"`
		AnsweredAt *time.Time `json:"answered,omitempty"`
		AwaySince  *time.Time `json:"away_since,omitempty"`
		LastError  string     `json:"last_error,omitempty"`
		FailedAt   *time.Time `json:"failed,omitempty"`
	}
	healthzLate struct {
		Name  string  `json:"name"`
		Topic string  `json:"topic,omitempty"`
		Late  float64 `json:"late"`
	}
	healthzLoop struct {
		Name  string  `json:"name"`
		Count int     `json:"count"`
		Late  int     `json:"late"`
		Age   float64 `json:"age"`
	}
	healthzTopic struct {
		Topic   string            `json:"topic"`
		Workers int               `json:"workers"`
		Running int               `json:"running"`
		Held    int               `json:"held"`
		Oldest  *healthzJob       `json:"oldest,omitempty"`
		Failing map[string]string `json:"failing,omitempty"`
	}
	healthzJob struct {
		ID  string  `json:"id"`
		For float64 `json:"for"`
	}
)

func healthz(ctx context.Context, s *Server) (ok bool, contentType, body string) {
	h := s.Health()
	p, why := s.usable(ctx, h)
	b := healthzBody{
		Schema: "delayq.health/1", OK: why == "", Reason: why, Server: h.ID, Version: h.Version, State: h.State, Since: stamp(h.Since),
		Count: len(h.Topics),
	}
	if h.State != "" && h.State != ServerNew {
		r := &healthzRedis{AnsweredAt: stamp(h.Redis.AnsweredAt), AwaySince: stamp(h.Redis.AwaySince), FailedAt: stamp(h.Redis.FailedAt)}
		if h.Redis.Err != nil {
			r.LastError = oneLine(h.Redis.Err)
		}
		b.Redis = r
	}
	if (h.State == ServerRunning || h.State == ServerDraining) && p.answered {
		look, _ := s.looks.get(ctx, lookEvery, s.lookAtRedis)
		ahead := s.engine.ClockOffset()
		b.Redis.Version, b.Redis.Role, b.Redis.RoundTrip, b.Redis.ClockAhead = look.version, look.role, p.took.Seconds(), ahead.Seconds()
		b.Warnings = slices.Clone(look.warnings)
		if ahead.Abs() > clockApart {
			b.Warnings = append(b.Warnings, fmt.Sprintf(
				"the clock of Redis is %v from that of this machine; jobs are due by the clock of Redis", ahead.Round(time.Millisecond)))
		}
	}
	for _, l := range h.Late {
		b.Late = append(b.Late, healthzLate{l.Name, l.Topic, l.Late.Seconds()})
	}
	for _, l := range h.Loops {
		b.Loops = append(b.Loops, healthzLoop{l.Name, l.Count, l.Late, l.Age.Seconds()})
	}
	for _, t := range h.Topics {
		b.Workers, b.Running, b.Held = b.Workers+t.Workers, b.Running+t.Running, b.Held+t.Held
	}
	for _, t := range noteworthy(h.Topics) {
		one := healthzTopic{Topic: t.Topic, Workers: t.Workers, Running: t.Running, Held: t.Held, Failing: t.Failing}
		if t.Oldest.ID != "" {
			one.Oldest = &healthzJob{t.Oldest.ID, t.Oldest.Running.Seconds()}
		}
		b.Topics = append(b.Topics, one)
	}
	text, err := json.MarshalIndent(b, "", "  ")
	if err != nil { // nothing above can cause it
		return false, plainText, oneLine(err)
	}
	return b.OK, "application/json", string(text)
}

// noteworthy returns at most fewTopics topics: first those with calls that fail, then those that
// hold most jobs.
func noteworthy(topics []TopicHealth) []TopicHealth {
	if len(topics) <= fewTopics {
		return topics
	}
	slices.SortStableFunc(topics, func(a, b TopicHealth) int {
		if fails := len(a.Failing) > 0; fails != (len(b.Failing) > 0) {
			if fails {
				return -1
			}
			return 1
		}
		return b.Held - a.Held
	})
	return topics[:fewTopics]
}

// stamp returns a time for JSON, or nil for the zero time.
func stamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Truncate(time.Millisecond)
	return &t
}

// A recent is a value that is asked for again when it has grown old, by one goroutine at a time.
type recent[T any] struct {
	mu     sync.Mutex
	value  T
	at     time.Time     // when it was asked for; zero: never
	asking chan struct{} // closed when the answer is there; nil: nobody asks
}

// errAsking is returned by get if ask returned no value.
var errAsking = errors.New("no answer")

// get returns a value that was asked for at most for age ago. It asks for another one if there is
// none, and waits for it until ctx is done.
func (r *recent[T]) get(ctx context.Context, age time.Duration, ask func() T) (value T, err error) {
	r.mu.Lock()
	if r.asking == nil && (r.at.IsZero() || time.Since(r.at) >= age) {
		r.at = time.Now()
		asking := make(chan struct{})
		r.asking = asking
		contain.Launch(nil, func() { r.answer(asking, ask()) }, func(*contain.Crash) { r.answer(asking, value) })
	}
	asking := r.asking
	value = r.value
	r.mu.Unlock()
	if asking == nil {
		return value, nil
	}
	select {
	case <-asking:
	case <-ctx.Done():
		return value, errAsking
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value, nil
}

func (r *recent[T]) answer(asking chan struct{}, value T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.value, r.asking = value, nil
	close(asking)
}
