// What users give to go-redis and slog. Goroutines, Launch and Alone, are in launch.go.

package contain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"

	"github.com/delayq/delayq/internal/link"
)

// User code runs on goroutines of the library: handlers, hooks, calendars, the Logger's handler,
// and the functions that go-redis calls on the way to Redis. A panic there would end the process,
// and a runtime.Goexit, which a test's FailNow calls, would end the goroutine. So every goroutine
// is started by Launch, which reports both, and the functions that go-redis and slog call are
// called by apart.

// Logger returns a Logger that neither panics nor ends its caller's goroutine. Lines that its
// handler does not accept are lost, because there is nowhere else to report them.
func Logger(l *slog.Logger) *slog.Logger {
	if _, is := l.Handler().(logHandler); is {
		return l
	}
	return slog.New(logHandler{l.Handler()})
}

// DefaultLogger returns the log for events of a Client that no caller receives.
func DefaultLogger() *slog.Logger { return Logger(slog.Default()) }

type logHandler struct{ inner slog.Handler }

func (h logHandler) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	defer func() { _ = recover() }()
	return h.inner.Enabled(ctx, level)
}

func (h logHandler) Handle(ctx context.Context, record slog.Record) error {
	return Alone(func() error { return h.inner.Handle(ctx, record) })
}

func (h logHandler) WithAttrs(attrs []slog.Attr) (with slog.Handler) {
	with = h
	defer func() { _ = recover() }()
	return logHandler{h.inner.WithAttrs(attrs)}
}

func (h logHandler) WithGroup(name string) (with slog.Handler) {
	with = h
	defer func() { _ = recover() }()
	return logHandler{h.inner.WithGroup(name)}
}

// Options makes panics and Goexits of the user's functions in o into errors. Some of these
// functions run on go-redis's own goroutines. o is a copy.
func Options(o *redis.Options) {
	o.Dialer = containDialer(o.Dialer)
	o.OnConnect = containOnConnect(o.OnConnect)
	o.CredentialsProviderContext = containCredentials(o.CredentialsProvider, o.CredentialsProviderContext)
	o.StreamingCredentialsProvider = containStreaming(o.StreamingCredentialsProvider)
	o.DialerRetryBackoff = containBackoff(o.DialerRetryBackoff)
}

// ClusterOptions is Options for a cluster.
func ClusterOptions(o *redis.ClusterOptions) {
	o.Dialer = containDialer(o.Dialer)
	o.OnConnect = containOnConnect(o.OnConnect)
	o.CredentialsProviderContext = containCredentials(o.CredentialsProvider, o.CredentialsProviderContext)
	o.StreamingCredentialsProvider = containStreaming(o.StreamingCredentialsProvider)
	o.DialerRetryBackoff = containBackoff(o.DialerRetryBackoff)
	if slots := o.ClusterSlots; slots != nil {
		o.ClusterSlots = func(ctx context.Context) ([]redis.ClusterSlot, error) {
			return apart(func() ([]redis.ClusterSlot, error) { return slots(ctx) })
		}
	}
	if make := o.NewClient; make != nil {
		o.NewClient = func(o *redis.Options) *redis.Client {
			made, err := apart(func() (*redis.Client, error) { return make(o), nil })
			if err != nil {
				return redis.NewClient(o)
			}
			return made
		}
	}
}

func containDialer(dial link.Dialer) link.Dialer {
	if dial == nil {
		return nil
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := apart(func() (net.Conn, error) { return dial(ctx, network, addr) })
		if err == nil && IsNil(conn) {
			err = errors.New("the dialer gave no connection")
		}
		return conn, err
	}
}

func containOnConnect(f func(context.Context, *redis.Conn) error) func(context.Context, *redis.Conn) error {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, conn *redis.Conn) error {
		return Alone(func() error { return f(ctx, conn) })
	}
}

func containBackoff(f func(int) time.Duration) func(int) time.Duration {
	if f == nil {
		return nil
	}
	return func(attempt int) time.Duration {
		wait, _ := apart(func() (time.Duration, error) { return f(attempt), nil })
		return wait
	}
}

type credentials struct{ username, password string }

// containCredentials combines two providers into one. go-redis asks the one with a context first.
func containCredentials(
	plain func() (string, string), with func(context.Context) (string, string, error),
) func(context.Context) (string, string, error) {
	if with == nil && plain != nil {
		with = func(context.Context) (string, string, error) {
			username, password := plain()
			return username, password, nil
		}
	}
	if with == nil {
		return nil
	}
	return func(ctx context.Context) (string, string, error) {
		c, err := apart(func() (c credentials, err error) {
			c.username, c.password, err = with(ctx)
			return c, err
		})
		return c.username, c.password, err
	}
}

func containStreaming(p auth.StreamingCredentialsProvider) auth.StreamingCredentialsProvider {
	if p == nil {
		return nil
	}
	return streaming{p}
}

type streaming struct {
	inner auth.StreamingCredentialsProvider
}

type subscription struct {
	credentials auth.Credentials
	unsubscribe auth.UnsubscribeFunc
}

func (s streaming) Subscribe(listener auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	got, err := apart(func() (got subscription, err error) {
		got.credentials, got.unsubscribe, err = s.inner.Subscribe(listener)
		if err == nil && (got.credentials == nil || got.unsubscribe == nil) {
			err = errors.New("the streaming credentials provider gave none")
		}
		if err == nil {
			username, password := got.credentials.BasicAuth()
			got.credentials = auth.NewBasicCredentials(username, password)
		}
		return got, err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("credentials: %w", err)
	}
	return got.credentials, func() error { return Alone(got.unsubscribe) }, nil
}
