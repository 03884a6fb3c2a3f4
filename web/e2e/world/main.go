// Command world serves the pages that the tests in a browser drive: a queue on an embedded Redis
// with something of everything in it, the page under four mounts, a page that cannot act, and one
// that hides topics. It writes the addresses as JSON in one line, and ends with its standard input.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/web"
)

// evil would run in a browser, in each of several places, if a page let it.
const evil = `</pre></script><script>pwned=1</script>"'><img src=x onerror=pwned=1><b onclick=pwned=1>bold</b>`

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() (err error) {
	q, err := delayqtest.Open(delayq.Prefix("shop"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	if err := fill(context.Background(), q); err != nil {
		return err
	}

	actor := web.Actor(func(*http.Request) string { return "alice" })
	every := web.Every(500 * time.Millisecond)
	acting, err := web.New(q.Inspector, web.Actions(q.Client), actor, every, web.Badge("test"), web.Payload("order:*", web.Redact("card")),
		web.Links(func(j *delayq.JobInfo) []web.Link {
			return []web.Link{{Text: "logs", URL: "https://logs.example.com/?q=" + url.QueryEscape(j.ID)}, {Text: "evil", URL: "javascript:pwned=1"}}
		}))
	if err != nil {
		return err
	}
	defer acting.Close()
	reading, err := web.New(q.Inspector, every)
	if err != nil {
		return err
	}
	defer reading.Close()
	hiding, err := web.New(q.Inspector, web.Actions(q.Client), actor, every,
		web.Visible(func(_ *http.Request, topic string) bool { return !strings.HasPrefix(topic, "hidden:") }))
	if err != nil {
		return err
	}
	defer hiding.Close()

	addresses := make(map[string]string)
	serve := func(name, path string, h http.Handler) (string, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		go func() { _ = http.Serve(l, h) }() // until the process ends
		addresses[name] = "http://" + l.Addr().String() + path
		return addresses[name], nil
	}
	root, err := serve("root", "/", acting)
	if err != nil {
		return err
	}
	target, err := url.Parse(root)
	if err != nil {
		return err
	}
	below := http.NewServeMux()
	below.Handle("/admin/delayq/", acting)
	proxied := http.NewServeMux()
	proxied.Handle("/ops/queue/", http.StripPrefix("/ops/queue", httputil.NewSingleHostReverseProxy(target)))
	for _, one := range []struct {
		name, path string
		handler    http.Handler
	}{
		{"below", "/admin/delayq/", below},
		{"stripped", "/x/y/", http.StripPrefix("/x/y", acting)},
		{"proxied", "/ops/queue/", proxied},
		{"reading", "/", reading},
		{"hiding", "/", hiding},
		{"faults", "/", faults(q)},
	} {
		if _, err := serve(one.name, one.path, one.handler); err != nil {
			return err
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(addresses); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// faults lets Redis fail, and work again.
func faults(q *delayqtest.Queue) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /away", func(http.ResponseWriter, *http.Request) { q.Miniredis.SetError("LOADING it starts") })
	mux.HandleFunc("POST /back", func(http.ResponseWriter, *http.Request) { q.Miniredis.SetError("") })
	return mux
}

// quiet is the logger of the servers: their failures are wanted.
var quiet = delayq.Logger(slog.New(slog.DiscardHandler))

// buried counts dead jobs.
type buried chan struct{}

func (b buried) Buried(delayq.RunEvent) { b <- struct{}{} }

// done counts done jobs.
type done chan struct{}

func (d done) Done(delayq.RunEvent) { d <- struct{}{} }

// The numbers of jobs that the tests know.
const (
	refused  = 96   // dead jobs of mail:welcome that failed with a 550
	tooMany  = 24   // and with a 421
	orders   = 150  // scheduled jobs of order:cancel
	letters  = 1200 // dead jobs of letter:print
	reports  = 40   // done jobs of report:daily
	tenants  = 5    // keys of invoice:print
	invoices = 5    // jobs of the first of them; each of the others has one fewer
)

// past writes a month of history into a topic, in the format of docs/protocol.md: servers can only
// count what happens now. The last 3 minutes and the present hour stay empty, and so do 30 minutes
// before the last hour.
func past(q *delayqtest.Queue, topic string, now time.Time) {
	key := fmt.Sprintf("%s:{%s}:", q.Inspector.Prefix(), topic)
	for ago := int64(3); ago < 360; ago++ {
		if ago >= 95 && ago < 125 {
			continue
		}
		minute := now.Unix()/60 - ago
		acked, retried, buried := 40+25*(ago/20%2)+ago%7, ago%9, ago%40/39
		q.Miniredis.HSet(key+"minutes", fmt.Sprint(minute%360), fmt.Sprintf("%d acked %d retried %d buried %d late3 %d late%d %d ran4 %d",
			minute, acked, retried, buried, acked, 6+ago/30%4, retried+buried, acked+retried+buried))
	}
	for ago := int64(1); ago < 720; ago++ {
		hour := now.Unix()/3600 - ago
		acked, retried := 900+60*(ago/12%7), 30*(ago/12%5)
		q.Miniredis.HSet(key+"hours", fmt.Sprint(hour%720), fmt.Sprintf("%d acked %d retried %d cancelled 9 late4 %d late%d %d ran4 %d",
			hour, acked, retried, acked, 7+ago/48%3, retried+9, acked+retried+9))
	}
}

// fill puts something of everything into the queue.
func fill(ctx context.Context, q *delayqtest.Queue) error {
	var jobs []delayq.NewJob
	put := func(topic, id, payload string, opts ...delayq.JobOption) {
		jobs = append(jobs, delayq.NewJob{Topic: topic, ID: id, Payload: []byte(payload), Options: opts})
	}
	for i := range refused + tooMany {
		id := fmt.Sprintf("u-%d", 41000+i)
		put("mail:welcome", id, fmt.Sprintf(`{"user":%q,"template":"welcome"}`, id), delayq.Header("tenant", fmt.Sprint(i%7)), delayq.Retry(0))
	}
	put("evil:"+evil, evil, `{"a":"`+strings.ReplaceAll(evil, `"`, `\"`)+`"}`, delayq.Header(evil, evil))
	for i := range reports {
		put("report:daily", fmt.Sprintf("report-%d", i), "{}", delayq.Retention(time.Hour))
	}
	if _, err := q.Client.EnqueueBatch(ctx, jobs); err != nil {
		return err
	}

	dead, ended := make(buried, refused+tooMany+1), make(done, reports)
	stop, err := q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("mail:welcome", func(_ context.Context, j *delayq.Job) error {
			if j.ID < fmt.Sprintf("u-%d", 41000+refused) {
				return delayq.Permanent(errors.New("smtp: 550 mailbox unavailable"))
			}
			return errors.New("smtp: 421 too many messages")
		}, delayq.Concurrency(8))
		s.HandlerFunc("evil:"+evil, func(context.Context, *delayq.Job) error { return delayq.Permanent(errors.New(evil)) })
		s.HandlerFunc("report:daily", func(context.Context, *delayq.Job) error { return nil })
	}, quiet, delayq.Hooks(dead), delayq.Hooks(ended))
	if err != nil {
		return err
	}
	for range refused + tooMany + 1 {
		<-dead
	}
	for range reports {
		<-ended
	}
	if err := stop(); err != nil {
		return err
	}

	jobs = nil
	for i := range orders {
		put("order:cancel", fmt.Sprintf("order-%d", 1000+i), `{"order":"o","card":"4111111111111111"}`,
			delayq.ProcessIn(time.Hour+time.Duration(i)*17*time.Second), delayq.Header("tenant", fmt.Sprint(i%5)))
	}
	for i := range letters {
		put("letter:print", fmt.Sprintf("letter-%d", i), "{}", delayq.ProcessIn(time.Hour))
	}
	for i := range 3 {
		put("refund:poll", fmt.Sprintf("refund-%d", i), "{}")
		put("sms:promo", fmt.Sprintf("customer-%d", i), "{}")
		put("hidden:salary", fmt.Sprintf("salary-%d", i), "{}", delayq.ProcessIn(time.Hour))
	}
	put("order:remind", "remind-1", "{}", delayq.ProcessIn(time.Hour))
	put("order:cancel", evil, evil, delayq.ProcessIn(2*time.Hour))
	for tenant := range tenants {
		for i := range invoices - tenant {
			put("invoice:print", fmt.Sprintf("invoice-%d-%d", tenant, i), "{}", delayq.Key(fmt.Sprintf("tenant-%d", tenant)))
		}
	}
	if _, err := q.Client.EnqueueBatch(ctx, jobs); err != nil {
		return err
	}
	all := delayq.Query{Topic: "letter:print", State: delayq.StateScheduled}
	if _, err := q.Client.Apply(delayq.WithActor(ctx, "bob"), all, delayq.Bury("out of paper")); err != nil {
		return err
	}
	if err := errors.Join(
		q.Client.SetLimits(ctx, "invoice:print", delayq.Limits{RunningPerKey: 2, RatePerKey: delayq.Per(20, time.Minute)}),
		q.Client.SetKeyLimits(ctx, "invoice:print", "tenant-0", delayq.KeyLimits{Weight: 3, Running: 4}),
		q.Client.Pause(ctx, "sms:promo", delayq.Pause{By: "alice", Reason: "the provider is down"}),
		q.Client.Schedule(ctx, "report:daily", "nightly "+evil, delayq.Cron("0 3 * * *", "Europe/Berlin"), []byte("{}")),
	); err != nil {
		return err
	}
	past(q, "order:remind", time.Now())
	_, err = q.Serve(func(s *delayq.Server) { // until the queue is closed
		s.HandlerFunc("order:cancel", func(context.Context, *delayq.Job) error { return nil })
	}, quiet)
	return err
}
