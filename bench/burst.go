package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// slowScript is the longest a script may run in the burst row.
const slowScript = 5 * time.Millisecond

// burst measures what others feel while a million jobs fall due within one
// second: the time of single scripts by Redis's own slow log, and the time of
// a PING from another process.
func burst(ctx context.Context, b *bench, p peer) (_ sample, err error) {
	const concurrency = 64
	t := newTally(b.sizes.burst)
	if err := b.warmUp(ctx, p, concurrency); err != nil {
		return nil, err
	}
	second, err := b.fillDue(ctx, p, t.n, func(_ int, second time.Time) time.Time {
		return second.Add(rand.N(time.Second))
	})
	if err != nil {
		return nil, err
	}
	stop, err := p.work(ctx, workload{topics: []topicWork{{topic, concurrency, t.handle}}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	scripts, err := watchScripts(ctx, b.store.admin)
	if err != nil {
		return nil, err
	}
	if err := until(ctx, second.Add(-meterLead)); err != nil {
		return nil, err
	}
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return nil, err
	}
	pings, err := startPinger(ctx, b.store.admin.Options().Addr)
	if err != nil {
		return nil, err
	}
	result, err := b.finish(ctx, p, m, t, second)
	waits, pingErr := pings()
	longest, slow, scriptErr := scripts()
	if err := errors.Join(err, pingErr, scriptErr); err != nil {
		return nil, err
	}
	result[figSlowScripts] = float64(slow)
	result[figLongestScript] = float64(longest) / float64(time.Millisecond)
	result[figPing] = float64(percentile(waits, 99)) / float64(time.Millisecond)
	result[figPingWorst] = float64(waits[len(waits)-1]) / float64(time.Millisecond)
	return result, nil
}

// watchScripts notes the longest scripts from now on. The function it returns
// says how long the longest was, as far as any took over a millisecond, and
// how many took over slowScript; it puts the slow log back as it was.
func watchScripts(ctx context.Context, admin *redis.Client) (end func() (time.Duration, int, error), err error) {
	const length = 10_000
	before := map[string]string{}
	for name, value := range map[string]int64{
		"slowlog-log-slower-than": time.Millisecond.Microseconds(),
		"slowlog-max-len":         length,
	} {
		old, err := admin.ConfigGet(ctx, name).Result()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		before[name] = old[name]
		if err := admin.ConfigSet(ctx, name, fmt.Sprint(value)).Err(); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	if err := admin.Do(ctx, "SLOWLOG", "RESET").Err(); err != nil {
		return nil, fmt.Errorf("empty the slow log: %w", err)
	}
	return func() (longest time.Duration, slow int, err error) {
		ctx := context.WithoutCancel(ctx)
		entries, err := admin.SlowLogGet(ctx, length).Result()
		for name, value := range before {
			err = errors.Join(err, admin.ConfigSet(ctx, name, value).Err())
		}
		for _, entry := range entries {
			if len(entry.Args) == 0 || !isScript(entry.Args[0]) {
				continue
			}
			longest = max(longest, entry.Duration)
			if entry.Duration > slowScript {
				slow++
			}
		}
		return longest, slow, err
	}, nil
}

// isScript says whether a command of the slow log runs a script.
func isScript(command string) bool {
	return slices.Contains([]string{"evalsha", "eval", "fcall", "evalsha_ro", "eval_ro", "fcall_ro"}, strings.ToLower(command))
}

// pingEvery is the pause between two PINGs.
const pingEvery = time.Millisecond

// startPinger starts another process that sends PING all the time, and returns
// when that one is connected. A process of its own, because a goroutine of this
// one would measure how busy this one is. The function it returns ends it and
// gives the waits, at least one, sorted, with omissions corrected.
func startPinger(ctx context.Context, addr string) (end func() ([]time.Duration, error), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the own program: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, "-pinger", addr)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the pinger: %w", err)
	}
	var connected bool
	out := json.NewDecoder(stdout)
	if err := out.Decode(&connected); err != nil {
		return nil, fmt.Errorf("start the pinger: %w", errors.Join(err, stdin.Close(), cmd.Wait()))
	}
	return func() ([]time.Duration, error) {
		var waits []time.Duration
		closeErr := stdin.Close()
		decodeErr := out.Decode(&waits)
		if err := errors.Join(closeErr, decodeErr, cmd.Wait()); err != nil {
			return nil, fmt.Errorf("pinger: %w", err)
		}
		waits = correctOmission(waits, pingEvery)
		slices.Sort(waits)
		return waits, nil
	}, nil
}

// pinger is the main function of that other process. It connects, writes true to
// out, sends PING until stop ends, though at least once, and writes the waits in
// nanoseconds. url is that of a Redis that is not ours; without it the one at
// addr is meant.
func pinger(ctx context.Context, url, addr string, stop io.Reader, out io.Writer) (err error) {
	opt := &redis.Options{Addr: addr}
	if url != "" {
		if opt, err = redis.ParseURL(url); err != nil {
			return err
		}
	}
	rdb := redis.NewClient(opt)
	defer func() { err = errors.Join(err, rdb.Close()) }()
	if err := rdb.Ping(ctx).Err(); err != nil {
		return err
	}
	result := json.NewEncoder(out)
	if err := result.Encode(true); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, stop) // any end of it is the end
		cancel()
	}()
	waits := make([]time.Duration, 0, 60_000)
	ticker := time.NewTicker(pingEvery)
	defer ticker.Stop()
	for {
		start := time.Now()
		if err := rdb.Ping(context.WithoutCancel(ctx)).Err(); err != nil {
			return err
		}
		waits = append(waits, time.Since(start))
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return result.Encode(waits)
		}
	}
}
