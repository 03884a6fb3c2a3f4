package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/doctor"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/script"
)

// A server checks its topics, with repair, in two ways.
//
// Rounds begin three minutes apart. Each checks all topics one after the other from end to end, at
// most one a second, so a round of many topics takes longer. In addition, every prune counts: if a
// topic has more records than places, it is checked immediately, but at most once a minute. For
// each way, the first server leaves a key that makes the others skip the topic. The calls of a
// check take at most a twentieth of Redis's time.
//
// A round skips a topic if a round of the last hour has found nothing in it and the sizes of all
// its keys have not changed. Ten thousand schedules that are not due for long then cost 230
// calls an hour instead of 230 every three minutes.
const (
	CheckFirst = 15 * time.Second
	CheckEvery = 3 * time.Minute
	checkGap   = time.Second // from topic to topic
	CheckTrust = time.Hour
	CheckAgain = time.Minute
	CheckPause = 20 * time.Millisecond
	checkShare = 20
)

// alarm reports that a topic has lost jobs.
func (s *Server) alarm(t *Topic) {
	select {
	case s.alarms <- t:
	default: // there is enough work
	}
}

// checkLoop checks one topic after the other.
func (s *Server) checkLoop(ctx context.Context) {
	for wait := CheckFirst; loop.Sleep(ctx, wait); {
		began, topics := time.Now(), s.Topics.all()
		every := max(CheckEvery, time.Duration(len(topics))*checkGap)
		for i, t := range topics {
			if i > 0 && !loop.Sleep(ctx, checkGap) {
				return
			}
			t.check(ctx, "check", every, true)
		}
		wait = max(checkGap, every-time.Since(began))
	}
}

// alarmLoop checks topics that have lost jobs. It does not wait for the check of a large topic.
func (s *Server) alarmLoop(ctx context.Context) {
	for {
		loop.SignOf(ctx).Wait()
		select {
		case <-ctx.Done():
			return
		case t := <-s.alarms:
			loop.SignOf(ctx).Turn()
			t.check(ctx, "alarm", CheckAgain, false)
		}
	}
}

// check checks a topic, unless a server has done so for this reason within the last every. A long
// check renews its key, so that no two servers check the topic simultaneously. If a check finds
// nothing, it stores the sizes of the topic's keys for the next check that trusts them.
func (t *Topic) check(ctx context.Context, reason string, every time.Duration, trusts bool) {
	turn, clean := t.Keys.Shift(reason), t.Keys.Shift("clean")
	s := t.Server
	length := every - every/10 // expires before the loop comes round
	d := doctor.New(s.Scripts, s.Calls, t.Keys, true)
	d.Timeout = CallTimeout
	claimed := time.Now()
	d.Pause = func(ctx context.Context, took time.Duration) error {
		if !loop.Sleep(ctx, max(CheckPause, checkShare*took)) {
			return context.Cause(ctx)
		}
		if time.Since(claimed) < length/2 {
			return nil
		}
		claimed = time.Now()
		call, cancel := context.WithTimeout(ctx, CallTimeout)
		defer cancel()
		return s.Calls.Set(call, turn, s.Config.ID, length).Err()
	}
	mine := false
	err := d.Paced(ctx, func(ctx context.Context) (err error) {
		mine, err = s.Calls.SetNX(ctx, turn, s.Config.ID, length).Result()
		return err
	})
	if err == nil && !mine {
		return
	}
	sizes, passed := "", false
	d.Known = func(ctx context.Context, now []int64) bool {
		call, cancel := context.WithTimeout(ctx, CallTimeout)
		defer cancel()
		sizes = fmt.Sprint(now)
		passed = trusts && s.Calls.Get(call, clean).Val() == sizes // an error counts as no key
		return passed
	}
	if err == nil {
		err = d.Check(ctx)
	}
	if found := len(d.Report.Found) > 0; err == nil && !passed && (found || sizes != "") {
		err = d.Paced(ctx, func(ctx context.Context) error {
			if found {
				return s.Calls.Del(ctx, clean).Err() // the next check must look again
			}
			return s.Calls.Set(ctx, clean, sizes, CheckTrust).Err()
		})
	}
	if errors.Is(err, doctor.ErrGrowing) { // the next check looks again
		t.trouble.log.Warn("check failed", "err", doctor.ErrGrowing)
		err = nil
	}
	if err == nil || ctx.Err() == nil { // otherwise it was cut off
		t.trouble.note("check", err)
	}
	t.logRepairs(d)
}

// logRepairs logs what a check has found.
func (t *Topic) logRepairs(d *doctor.Doctor) {
	if len(d.Report.Found) == 0 {
		return
	}
	var found []string
	for _, what := range slices.Sorted(maps.Keys(d.Report.Found)) {
		found = append(found, fmt.Sprintf("%s: %d", what, d.Report.Found[what]))
	}
	for _, key := range d.WrongTypes {
		found = append(found, fmt.Sprintf("%s is not a %s", key, script.TypeOf(key)))
	}
	t.trouble.log.Warn("topic repaired", "count", d.Report.Mended, "found", strings.Join(found, ", "))
}
