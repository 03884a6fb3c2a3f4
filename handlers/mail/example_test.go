package mail_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/handlers/mail"
)

func ExampleNew() {
	dir, err := os.MkdirTemp("", "templates")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	welcome := filepath.Join(dir, "welcome.txt")
	if err := os.WriteFile(welcome, []byte("Hello {{.name}},\n"), 0o600); err != nil {
		panic(err)
	}

	handler, err := mail.New(
		mail.Server{Host: "smtp.example", Username: "shop", Password: mail.Password("from a file or the environment")},
		"Shop <shop@shop.example>",
		map[string]mail.Template{"welcome": {Subject: "Welcome, {{.name}}", Text: welcome}},
	)
	if err != nil {
		panic(err)
	}
	// In a program: server.Handle("mail", handler, delayq.Defaults(delayq.Retry(10)))
	job := &delayq.Job{Payload: []byte(`{"template": "welcome", "to": ["Ann"], "data": {"name": "Ann"}}`)}
	fmt.Println(strings.ReplaceAll(handler.Handle(context.Background(), job).Error(), "; ", "\n"))
	// Output:
	// mail: payload of 63 bytes: address 1 of to: not an address
	// expected name@domain, or Display Name <name@domain>
}
