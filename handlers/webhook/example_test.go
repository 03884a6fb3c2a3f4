package webhook_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/handlers/webhook"
)

// A receiver checks the signature, and a queue posts to it.
func Example() {
	secret, err := webhook.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw") // from a file or the environment
	if err != nil {
		panic(err)
	}
	seen := map[string]bool{}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "the body cannot be read", http.StatusBadRequest)
			return
		}
		id, err := webhook.Verify(r.Header, body, secret)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		if !seen[id] { // in a program: a table, in the transaction with what the request leads to
			seen[id] = true
			fmt.Printf("%s\n", body)
		}
	}))
	defer receiver.Close()

	q, err := delayqtest.Open() // in a program: a client and a server of a Redis
	if err != nil {
		panic(err)
	}
	defer q.Close()
	hook, err := webhook.New(webhook.Receiver{URL: receiver.URL, Secrets: []webhook.Secret{secret}},
		webhook.PlainHTTP(), webhook.Allow(netip.MustParsePrefix("127.0.0.0/8"))) // a program leaves these two out
	if err != nil {
		panic(err)
	}
	_, err = q.Serve(func(s *delayq.Server) { s.Handle("order:paid", hook, delayq.Defaults(delayq.Retry(9))) })
	if err != nil {
		panic(err)
	}

	ctx := context.Background()
	_, err = q.Client.Enqueue(ctx, "order:paid", "order-42", []byte(`{"type":"order.paid"}`), webhook.Key(receiver.URL))
	if err != nil {
		panic(err)
	}
	if err := q.Advance(ctx, 0); err != nil {
		panic(err)
	}
	// Output: {"type":"order.paid"}
}

// The receivers are customers of a service, who have subscribed with URLs of their own.
func ExampleNewLookup() {
	subscriptions := map[string]webhook.Receiver{} // in a program: a table
	hook, err := webhook.NewLookup(func(_ context.Context, job *delayq.Job) (webhook.Receiver, error) {
		r, ok := subscriptions[job.Headers["subscription"]]
		if !ok {
			return r, delayq.Permanent(fmt.Errorf("subscription %q has ended", job.Headers["subscription"]))
		}
		return r, nil
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(hook.Handle(context.Background(), &delayq.Job{Headers: map[string]string{"subscription": "7"}}))
	// Output: webhook: find the receiver: subscription "7" has ended
}
