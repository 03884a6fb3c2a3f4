package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// A shop is the load of the demo.
type shop struct {
	ctx      context.Context
	queue    *delayqtest.Queue
	hooks    delayq.HooksOption
	cancel   context.CancelFunc
	visitors sync.WaitGroup
	orders   int
}

// The topics of the shop.
const (
	orderCancel  = "order:cancel"
	orderRemind  = "order:remind"
	mailWelcome  = "mail:welcome"
	invoicePrint = "invoice:print"
	smsPromo     = "sms:promo"
	refundPoll   = "refund:poll"
	reportDaily  = "report:daily"
	stockSync    = "stock:sync"
)

const (
	orderEvery  = 80 * time.Millisecond
	oldOrders   = 1200 // orders of before, due within the next hour
	oldInvoices = 1500 // invoices that wait
)

// tenant returns whose invoice it is: most of them are of one tenant.
func tenant(i int) string {
	if i%5 != 0 {
		return "tenant-0"
	}
	return fmt.Sprintf("tenant-%d", i/5%9+1)
}

// open fills the queue, and starts the servers and the visitors.
func (s *shop) open() error {
	s.ctx, s.cancel = context.WithCancel(s.ctx)
	if err := s.fill(); err != nil {
		return err
	}
	if _, err := s.queue.Serve(s.backOffice, quiet, s.hooks); err != nil {
		return err
	}
	if _, err := s.queue.Serve(s.mailer, quiet, s.hooks); err != nil {
		return err
	}
	s.visitors.Go(s.visit)
	return nil
}

// close sends the visitors home. The servers end with the queue.
func (s *shop) close() {
	if s.cancel != nil {
		s.cancel()
	}
	s.visitors.Wait()
}

// fill stores what has happened before the demo.
func (s *shop) fill() error {
	c := s.queue.Client
	var jobs []delayq.NewJob
	add := func(topic, id string, opts ...delayq.JobOption) {
		jobs = append(jobs, delayq.NewJob{Topic: topic, ID: id, Payload: []byte(fmt.Sprintf(`{"of":%q}`, id)), Options: opts})
	}
	for i := range oldOrders { // more and more, and then fewer
		half := (rand.Float64() + rand.Float64()) / 2
		due := time.Duration(half * float64(time.Hour))
		add(orderCancel, fmt.Sprintf("order-%d", 1000+i), delayq.ProcessIn(due+10*time.Second), delayq.Header("tenant", fmt.Sprint(i%9)))
		if i%2 == 0 {
			add(orderRemind, fmt.Sprintf("order-%d", 1000+i), delayq.ProcessIn(due/2+5*time.Second))
		}
	}
	for i := range oldInvoices {
		add(invoicePrint, fmt.Sprintf("invoice-%d", 70000+i), delayq.Key(tenant(i)))
	}
	for i := range 40 {
		add(smsPromo, fmt.Sprintf("customer-%d", i))
	}
	for i := range 3 {
		add(refundPoll, fmt.Sprintf("refund-%d", i))
	}
	if _, err := c.EnqueueBatch(s.ctx, jobs); err != nil {
		return err
	}
	return errors.Join(
		c.Pause(s.ctx, smsPromo, delayq.Pause{By: "alice", Reason: "the provider is down", For: time.Hour}),
		c.SetKeyLimits(s.ctx, invoicePrint, "tenant-1", delayq.KeyLimits{Weight: 3}),
		c.Schedule(s.ctx, reportDaily, "sums", delayq.Cron("0 9 * * *", "Europe/Berlin"), nil),
		c.Schedule(s.ctx, reportDaily, "weekly", delayq.Cron("0 9 * * 1", "Europe/Berlin"), nil, delayq.Retry(5)),
		c.Schedule(s.ctx, stockSync, "warehouse-1", delayq.Every(5*time.Second), nil),
		c.Schedule(s.ctx, stockSync, "warehouse-2", delayq.Every(7*time.Second), nil, delayq.OverlapQueueOne),
	)
}

// backOffice handles everything but emails.
func (s *shop) backOffice(server *delayq.Server) {
	server.HandlerFunc(orderCancel, work(20*time.Millisecond, 60*time.Millisecond), delayq.Concurrency(8))
	server.HandlerFunc(orderRemind, work(10*time.Millisecond, 40*time.Millisecond), delayq.Concurrency(4))
	server.HandlerFunc(invoicePrint, work(200*time.Millisecond, 600*time.Millisecond), delayq.Concurrency(2))
	server.HandlerFunc(smsPromo, work(10*time.Millisecond, 20*time.Millisecond), delayq.Concurrency(2))
	server.HandlerFunc(reportDaily, work(time.Second, 2*time.Second), delayq.Concurrency(1))
	server.HandlerFunc(stockSync, work(300*time.Millisecond, 900*time.Millisecond), delayq.Concurrency(2))
}

// mailer sends emails. Some of them fail, and a few can never be sent.
func (s *shop) mailer(server *delayq.Server) {
	send := work(30*time.Millisecond, 150*time.Millisecond)
	server.HandlerFunc(mailWelcome, func(ctx context.Context, job *delayq.Job) error {
		if err := send(ctx, job); err != nil {
			return err
		}
		switch n := rand.IntN(100); {
		case n < 25:
			return fmt.Errorf("dial tcp 10.0.0.%d:25: connection refused", 1+rand.IntN(4))
		case n < 30:
			return fmt.Errorf("smtp: 421 too many messages, try again in %ds", 10+rand.IntN(50))
		case n < 33:
			return delayq.Permanent(fmt.Errorf("smtp: 550 mailbox of %s is unavailable", job.ID))
		}
		return nil
	}, delayq.Concurrency(4))
}

// work returns a handler that takes some time.
func work(least, most time.Duration) delayq.HandlerFunc {
	return func(ctx context.Context, _ *delayq.Job) error {
		return wait(ctx, least+rand.N(most-least))
	}
}

// visit lets customers order until the shop closes.
func (s *shop) visit() {
	for wait(s.ctx, orderEvery+rand.N(orderEvery)) == nil {
		s.order()
	}
}

// order is what a program does when a customer orders. Errors mean that the shop closes.
func (s *shop) order() {
	c := s.queue.Client
	s.orders++
	id := fmt.Sprintf("order-%d", 10000+s.orders)
	payload := []byte(fmt.Sprintf(`{"order":%q,"items":%d}`, id, 1+rand.IntN(5)))
	_, _ = c.Enqueue(s.ctx, orderCancel, id, payload, delayq.ProcessIn(15*time.Second+rand.N(30*time.Minute)), delayq.Header("tenant", fmt.Sprint(rand.IntN(9))))
	if s.orders%2 == 0 { // this one is paid
		_, _ = c.Dequeue(s.ctx, orderCancel, fmt.Sprintf("order-%d", 10000+s.orders-1))
	}
	switch s.orders % 3 {
	case 0:
		_, _ = c.Enqueue(s.ctx, orderRemind, id, payload, delayq.ProcessIn(3*time.Second+rand.N(20*time.Minute)))
	case 1:
		_, _ = c.Enqueue(s.ctx, mailWelcome, fmt.Sprintf("customer-%d", 500+s.orders), payload,
			delayq.ProcessIn(rand.N(4*time.Second)), delayq.Retry(4), delayq.Backoff(2*time.Second, time.Minute))
	}
	if s.orders%5 == 0 {
		_, _ = c.Enqueue(s.ctx, invoicePrint, "invoice-of-"+id, payload, delayq.Key(tenant(s.orders)))
	}
}
