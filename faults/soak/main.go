// Soak runs a queue under random faults for some time, heals it, drains it, and checks that every
// promise was kept.
//
//	go run ./soak -minutes 10 [-seed n] [-dir path] [-outbox] [-pause 12ms]
//
// Three worker processes and several enqueuers enqueue, cancel, reschedule, replace, fail, snooze,
// panic and time out, and schedules are made, changed, paused, triggered and removed, while
// connections are cut, frozen and slowed, replies lost, workers and Redis killed and stopped, and
// with an outbox its relays and its PostgreSQL. The last line has the figures. On a violation the
// exit code is 1, and the history, the logs and the seed are kept.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"time"

	"github.com/delayq/delayq/faults/rig"
)

func main() {
	rig.WorkerMain()
	minutes := flag.Float64("minutes", 1, "how long the faults go on")
	seed := flag.Uint64("seed", rand.Uint64()%1_000_000, "seed of the load and the faults") //nolint:gosec // not for secrets
	dir := flag.String("dir", "", "directory for history and logs, kept in any case; default: one that is kept only after a violation")
	box := flag.Bool("outbox", false, "enqueue, cancel and reschedule by the rows of an outbox only, and kill its relays and its database")
	pause := flag.Duration("pause", pause, "how long each of four enqueuers waits between two calls, on average")
	again := flag.String("recheck", "", "only judge the history in this directory again, without the state of Redis, which is gone")
	flag.Parse()
	if *again != "" {
		s := &Soak{Dir: *again, history: rig.NewHistory(*again)}
		report, err := s.recheck()
		if err == nil {
			for _, v := range report.Violations {
				fmt.Println(v)
			}
			fmt.Println(report)
			return
		}
		fmt.Println("FAILED:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := soak(ctx, *minutes, *seed, *dir, *box, *pause); err != nil {
		fmt.Println("FAILED:", err)
		os.Exit(1)
	}
}

func soak(ctx context.Context, minutes float64, seed uint64, dir string, box bool, pause time.Duration) (err error) {
	keep := dir != ""
	if !keep {
		if dir, err = os.MkdirTemp("", "delayq-soak-"); err != nil {
			return err
		}
	} else if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	s := &Soak{Seed: seed, Dir: dir, For: time.Duration(minutes * float64(time.Minute)), Log: os.Stdout, Outbox: box, Pause: pause}
	report, err := s.Run(ctx)
	if err == nil && len(report.Violations) > 0 {
		for i, v := range report.Violations {
			if i == 20 {
				fmt.Printf("… and %d more\n", len(report.Violations)-i)
				break
			}
			fmt.Println(v)
		}
		if story := s.Story(report.Violations[0]); story != "" {
			fmt.Println("the story of the first one:")
			fmt.Print(story)
		}
		err = fmt.Errorf("%d violations", len(report.Violations))
	}
	if report != nil {
		fmt.Printf("soak %v seed %d: %s\n", s.For, seed, report)
	}
	if err != nil {
		return fmt.Errorf("%w; seed %d, history and logs in %s", err, seed, dir)
	}
	if !keep {
		return os.RemoveAll(dir)
	}
	return nil
}
