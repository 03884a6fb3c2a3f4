package serve

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/script"
)

// Redis must be at least 6.2, which introduced LPOP with a count, ZMSCORE, LMOVE and BLMOVE.
const leastMajor, leastMinor = 6, 2

// Errors of run. The root documents them.
var (
	ErrUsed    = errors.New("delayq: server has been run before")
	ErrAway    = errors.New("delayq: Redis cannot be used")
	ErrVersion = errors.New("delayq: requires Redis 6.2 or later")
)

// awaitRedis waits until Redis answers, checks its version and settings, and records the topics.
// It returns nil when ctx is done, and an error when FailFast is over.
func (s *Server) awaitRedis(ctx context.Context) error {
	var slow loop.Pace
	last := errors.New("it does not answer")
	within, cancel := ctx, context.CancelFunc(func() {})
	if s.Config.FailFast > 0 {
		within, cancel = context.WithTimeout(ctx, s.Config.FailFast)
	}
	defer cancel()
	for within.Err() == nil {
		greeted := make(chan error, 1)
		contain.Launch(nil, func() { greeted <- s.greet(ctx) }, func(c *contain.Crash) { greeted <- c })
		var err error
		select {
		case err = <-greeted:
		case <-within.Done():
			s.Close() // ends the call, even if Redis never answers
			<-greeted
			continue
		}
		if err == nil || !script.Away(err) {
			return err
		}
		last = err
		s.outage.Failed("start", err)
		loop.Sleep(within, slow.Next())
	}
	if ctx.Err() == nil {
		return fmt.Errorf("run: %w: FailFast(%v): %w", ErrAway, s.Config.FailFast, last)
	}
	return nil
}

func (s *Server) greet(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	if err := s.noteTopics(call); err != nil {
		if script.Away(err) {
			return fmt.Errorf("run: note topics: %w", script.Hinted(err))
		}
		// Only Topics needs them. The jobs of a Redis that is full must still be run.
		s.Log.Error("topics not recorded", "err", err)
	}
	s.outage.Answered("start")
	info, err := s.Calls.Info(call).Result()
	if err != nil {
		if script.Away(err) {
			return fmt.Errorf("run: ask Redis about itself: %w", err)
		}
		s.Log.Warn("INFO is not permitted; the version and the settings of Redis are not checked", "err", err)
		return nil
	}
	return s.judge(script.ParseInfo(info))
}

// judge rejects a Redis that is too old and warns about settings that can lose jobs. Values that
// Redis does not report are not checked.
func (s *Server) judge(info map[string]string) error {
	if v := info["redis_version"]; v != "" && !atLeast(v, leastMajor, leastMinor) {
		return fmt.Errorf("run: %w: this is %s", ErrVersion, v)
	}
	if policy := script.Evicting(info); policy != "" {
		s.Log.Error("Redis will evict keys when its memory is full, and jobs with them: set maxmemory-policy to noeviction",
			"err", "maxmemory-policy is "+policy)
	}
	if info["aof_enabled"] == "0" {
		s.Log.Warn("Redis keeps no append-only file: a crash of Redis loses the jobs since its last snapshot; see docs/operations.md")
	}
	return nil
}

// atLeast reports whether a version like 7.0.15 is at least major.minor.
func atLeast(version string, major, minor int) bool {
	part := strings.SplitN(version, ".", 3)
	if len(part) < 2 {
		return false
	}
	a, err1 := strconv.Atoi(part[0])
	b, err2 := strconv.Atoi(part[1])
	return err1 == nil && err2 == nil && (a > major || a == major && b >= minor)
}
