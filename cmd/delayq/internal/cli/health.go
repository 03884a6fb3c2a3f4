package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// mostHealth is how many bytes of an answer health prints.
const mostHealth = 1 << 20

func (a *app) healthCommand() *cobra.Command {
	within := 3 * time.Second
	cmd := &cobra.Command{
		Use:   "health URL",
		Short: "Ask a server of your program whether it is healthy",
		Long: `Get a URL of delayq.HealthHandler, such as http://127.0.0.1:8080/readyz, and print
the answer. It is for containers without a shell and curl, and does not connect to
Redis. The exit code is 0 if the status is 200, and otherwise 1, also if nobody
answers. Redirects are not followed, and no proxy is used. --tls-ca, --tls-cert and
--tls-key are for an https URL.`,
		Example:           "  delayq health http://127.0.0.1:8080/livez\n  delayq health --within 5s http://127.0.0.1:8080/healthz",
		Args:              counted(1, 1, "a URL"),
		ValidArgsFunction: a.completeArgs(nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case within < time.Millisecond:
				return usage("--within %v: must be at least 1ms", within)
			case !a.tabular():
				return usage("-o %s: health prints what the server says; healthz is JSON", a.format)
			}
			return a.health(cmd.Context(), args[0], within)
		},
	}
	cmd.Flags().Var(&duration{&within}, "within", "how long the answer may take; readyz needs 2s if Redis is silent")
	return cmd
}

// health gets a URL and prints the body of the answer.
func (a *app) health(parent context.Context, address string, within time.Duration) error {
	u, err := url.Parse(address)
	switch {
	case err != nil: // the error has the whole URL in it, perhaps with a password
		return usage("URL: not one; http://HOST:PORT/readyz is expected")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return usage("URL %q: http://HOST:PORT/readyz is expected", u.Redacted())
	}
	transport := &http.Transport{DisableKeepAlives: true}
	if u.Scheme == "https" {
		if transport.TLSClientConfig, err = a.tls(nil, u.Hostname()); err != nil {
			return err
		}
	}
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	ctx, cancel := context.WithTimeout(parent, within)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return &exitCode{exitError, err.Error()}
	}
	response, err := client.Do(request)
	switch {
	case parent.Err() != nil:
		return parent.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return &exitCode{exitError, fmt.Sprintf("%s: no answer within %v", u.Redacted(), within)}
	case err != nil:
		return &exitCode{exitError, err.Error()}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, mostHealth))
	if text := strings.TrimRight(string(body), "\n"); text != "" {
		fmt.Fprintln(a.stdout(), safe(text, true))
	}
	switch {
	case err != nil:
		return &exitCode{exitError, fmt.Sprintf("%s: %v", u.Redacted(), err)}
	case response.StatusCode != http.StatusOK:
		return &exitCode{exitError, fmt.Sprintf("%s: status %s", u.Redacted(), response.Status)}
	}
	return nil
}
