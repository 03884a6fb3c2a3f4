// Package mail has a handler for delayq that sends a mail for each job, by SMTP.
//
//	relay := mail.Server{
//		Host: "smtp.example", Username: "shop",
//		Password: mail.Password(os.Getenv("SMTP_PASSWORD")),
//	}
//	welcome, err := mail.New(relay, "Shop <shop@shop.example>",
//		map[string]mail.Template{
//			"welcome": {Subject: "Welcome, {{.name}}", Text: "welcome.txt", HTML: "welcome.html"},
//		})
//	server.Handle("mail", welcome, delayq.Defaults(delayq.Retry(10)))
//
//	_, err = client.Enqueue(ctx, "mail", "welcome-7", []byte(`{
//		"template": "welcome", "to": ["Ann <ann@customer.example>"], "data": {"name": "Ann"}}`))
//
// The sender, the server and the templates are from the configuration alone. The payload names a
// template, the recipients (to, cc and bcc, 50 in all, and reply_to), and the data of the template.
// A subject and a text are templates of text/template, and an HTML is one of html/template, which
// escapes the data. A template that uses data that the payload does not have buries the job.
//
// # Addresses
//
// An address is name@domain, perhaps with a display name: Ann <ann@customer.example>. Addresses
// that need quotes are refused, and so are line breaks and other control characters in addresses
// and in the subject. So no payload can add a header or a command of SMTP.
//
// # Outcomes
//
//	the server has accepted the mail       the job is done
//	4xx, no connection, a lost one         the job is retried after its backoff
//	5xx to the sender, a recipient or      the job is buried
//	the mail
//	5xx to anything before, such as a      the job is retried after its backoff, because the mail
//	wrong password                         is not the reason
//	a payload that does not fit            the job is buried
//
// If the server refuses one of several recipients, nobody gets the mail. If it refuses several, the
// last answer counts. A job for each recipient avoids that.
//
// A connection that is lost after the mail and before the answer leaves open whether the server has
// accepted it. The job is retried, so the mail can arrive twice. Both have the same Message-ID,
// made of the topic, the ID and the incarnation of the job, so that mail servers and programs can
// drop the second one.
//
// # Output
//
// The Message-ID and the answer of the server are attached to the run ([delayq.Job.SetOutput]).
package mail
