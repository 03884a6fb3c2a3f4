// Package webhook has a handler for delayq that posts the payload of each job to a receiver, by the
// conventions of Standard Webhooks (https://www.standardwebhooks.com).
//
//	secret, err := webhook.ParseSecret(os.Getenv("WEBHOOK_SECRET"))
//	hook, err := webhook.New(webhook.Receiver{
//		URL: "https://shop.example/hooks", Secrets: []webhook.Secret{secret},
//	})
//	server.Handle("order:paid", hook, delayq.Defaults(delayq.Retry(9)))
//
//	_, err = client.Enqueue(ctx, "order:paid", "order-42", []byte(`{"type":"order.paid"}`),
//		webhook.Key("https://shop.example/hooks"))
//
// A request has these headers:
//
//	webhook-id         the same for all attempts of a job, and different for another job: see [ID]
//	webhook-timestamp  the time of the attempt in Unix seconds, by the clock of this machine
//	webhook-signature  "v1," and the HMAC-SHA256 of "id.timestamp.payload" in base64, one for each
//	                   secret, separated by a space
//
// The status of the answer decides:
//
//	2xx                          the job is done
//	410                          the job is buried, and its key is held with [HoldGone]
//	429, 503 with a Retry-After  the key of the job is held that long ([delayq.HoldKey]), and the
//	                             job runs again then; after [Patience] this is a failure
//	any other, or none           the job is retried by [Delays]
//
// Redirects are not followed: a 3xx is a failure. A request is over after 15 s ([Timeout]).
// [NewLookup] finds the receiver of each job, and with [NewNamed] the payload names it.
//
// # Receivers
//
// [Verify] is the other side: it checks the signature and the time of a request, and returns its
// ID.
//
// # One dead receiver
//
// With [Key] the host of the receiver is the key of the job. Then a hold is about that host alone,
// the hosts take turns, and [PerHost] bounds the requests to one of them at a time. Without that
// bound, a receiver that answers slowly can occupy all workers of the topic. A job without a key
// cannot be held: it fails and is retried after the Retry-After.
//
// # Addresses
//
// Whoever chooses the URL of a receiver chooses where this machine connects to. So the handler
// connects to public addresses only, unless [Allow] names others. It checks the address that a
// connection is about to be made to, after the name was resolved. So a name whose address changes
// between a check and the connection (DNS rebinding) gains nothing. It uses no proxy, because a
// proxy would resolve names itself; the environment variables for proxies have no effect.
//
// Refused are all addresses that the special-purpose registries of the IANA do not call globally
// reachable, all multicast addresses, 6to4, Teredo, NAT64, and IPv6 addresses outside 2000::/3. A
// host with a public address that must not be reached belongs into [Deny].
//
// # Output
//
// The status and the first KiB of an answer are attached to the run ([delayq.Job.SetOutput]).
package webhook
