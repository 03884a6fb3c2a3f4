package delayq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A server checks its topics, with repair, in two ways. In rounds, three minutes after each other, all its topics are looked through one after the
// other from end to end. And every prune counts: if there are more records than places, the topic is looked through at once, but not twice
// within a minute. Of each way, whichever server comes first leaves a key behind for the others to see. Of the time of the calls of a
// check a twentieth at most is Redis's. A round passes over a topic that a round of the last hour has found in good health, if the sizes of
// all its keys are the same still: ten thousand schedules that are far away cost 130 calls an hour and not every three minutes.
const (
	checkFirst = 15 * time.Second
	checkEvery = 3 * time.Minute
	checkTrust = time.Hour
	checkAgain = time.Minute
	checkPause = 20 * time.Millisecond
	checkShare = 20
)

// alarm says that a topic has lost jobs.
func (s *Server) alarm(t *topicServer) {
	select {
	case s.alarms <- t:
	default: // there is work enough
	}
}

// checkLoop checks one topic after the other.
func (s *Server) checkLoop(ctx context.Context) {
	for wait := checkFirst; sleep(ctx, wait); wait = checkEvery {
		for _, t := range s.topics {
			if ctx.Err() != nil {
				return
			}
			t.check(ctx, t.keys.turn("check"), checkEvery, t.keys.turn("clean"))
		}
	}
}

// alarmLoop checks topics that have lost jobs. It does not wait for the check of a large topic.
func (s *Server) alarmLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case t := <-s.alarms:
			t.check(ctx, t.keys.turn("alarm"), checkAgain, "")
		}
	}
}

// check looks through a topic if no server has done so within the last every, as the key turn says. A long check takes its turn anew, so
// that no two servers are at it. The key clean, if any, has the sizes of the topic's keys before a look that has found nothing.
func (t *topicServer) check(ctx context.Context, turn string, every time.Duration, clean string) {
	s := t.server
	length := every - every/10 // gone when the loop comes round
	d := newDoctor(s.call, s.calls, t.keys, true)
	d.timeout = callTimeout
	claimed := time.Now()
	d.pause = func(ctx context.Context, took time.Duration) error {
		if !sleep(ctx, max(checkPause, checkShare*took)) {
			return context.Cause(ctx)
		}
		if time.Since(claimed) < length/2 {
			return nil
		}
		claimed = time.Now()
		call, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return s.calls.Set(call, turn, s.id, length).Err()
	}
	mine := false
	err := d.paced(ctx, func(ctx context.Context) (err error) {
		mine, err = s.calls.SetNX(ctx, turn, s.id, length).Result()
		return err
	})
	if err == nil && !mine {
		return
	}
	sizes, passed := "", false
	if clean != "" {
		d.known = func(ctx context.Context, now []int64) bool {
			call, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			sizes = fmt.Sprint(now)
			passed = s.calls.Get(call, clean).Val() == sizes // an error is as good as no key
			return passed
		}
	}
	if err == nil {
		err = d.check(ctx)
	}
	if err == nil && sizes != "" && !passed && len(d.report.Found) == 0 {
		err = d.paced(ctx, func(ctx context.Context) error { return s.calls.Set(ctx, clean, sizes, checkTrust).Err() })
	}
	if errors.Is(err, errGrowing) { // it will be looked at again
		t.trouble.log.Warn("check", "err", errGrowing)
		err = nil
	}
	t.note(ctx, "check", err)
	if len(d.report.Found) == 0 {
		return
	}
	var found []string
	for _, what := range slices.Sorted(maps.Keys(d.report.Found)) {
		found = append(found, fmt.Sprintf("%s: %d", what, d.report.Found[what]))
	}
	for _, key := range d.wrong {
		found = append(found, fmt.Sprintf("%s is not a %s", key, typeOf(key)))
	}
	t.trouble.log.Warn("mend", "count", d.report.Mended, "err", strings.Join(found, ", "))
}
