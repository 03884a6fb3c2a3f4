package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/delayq/delayq"
)

// The pace of work in the background.
const (
	firstPause = time.Second      // after an error of Redis
	mostPause  = 5 * time.Minute  // after many
	dbPatience = 10 * time.Second // for the tables of a database at the start
	dbPause    = 10 * time.Second // after an error of a database
	trimEvery  = time.Hour        // how often old records of inboxes are deleted
	callLimit  = 30 * time.Second // for the calls of one round to Redis
)

// signal wakes a loop.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is about to look anyway
	}
}

// syncLoop makes the schedules in Redis those of the file, whenever it is asked to, and again after
// an error.
func (w *Worker) syncLoop(ctx context.Context) {
	select {
	case <-w.server.Ready():
	case <-ctx.Done():
		return
	}
	pause, last := firstPause, ""
	var again <-chan time.Time
	for {
		select {
		case <-w.synced:
			pause = firstPause
		case <-again:
		case <-ctx.Done():
			return
		}
		again = nil
		err := w.sync(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			w.Log.Info("the schedules are those of the file")
			pause, last = firstPause, ""
			w.compareLimits(ctx)
			continue
		case err.Error() != last: // otherwise it has been said
			w.Log.Error("schedules not written; it is tried again", "err", err)
			last = err.Error()
		}
		again = time.After(pause)
		pause = min(2*pause, mostPause)
	}
}

// sync makes the schedules in Redis those of the file. Those that delayq task add or a program has
// made remain.
func (w *Worker) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	w.mu.Lock()
	file := w.file
	gone := maps.Clone(w.gone)
	w.mu.Unlock()
	var errs []error
	// remove removes those schedules of a topic that came from a file and have left it.
	remove := func(topic string, left func(name string) bool) {
		list, err := w.Inspector.Schedules(ctx, topic)
		if err != nil {
			errs = append(errs, err)
			return
		}
		for _, s := range list {
			if s.Headers[HeaderFrom] != FromFile || !left(s.Name) {
				continue
			}
			err := w.Client.Unschedule(ctx, topic, s.Name)
			switch {
			case err == nil:
				w.Log.Info("schedule removed", "topic", topic, "schedule", s.Name)
			case !errors.Is(err, delayq.ErrNotFound):
				errs = append(errs, err)
			}
		}
	}
	var wanted []delayq.NewSchedule
	for _, t := range file.Topics {
		remove(t.Name, func(name string) bool {
			return !slices.ContainsFunc(t.schedules, func(s *schedule) bool { return s.name == name })
		})
		for _, s := range t.schedules {
			wanted = append(wanted, delayq.NewSchedule{Topic: t.Name, Name: s.name, Spec: s.spec, Payload: s.payload, Options: s.options})
		}
	}
	_, err := w.Client.ScheduleBatch(ctx, wanted)
	errs = append(errs, err)
	for topic, names := range gone {
		remove(topic, func(name string) bool { return slices.Contains(names, name) })
	}
	if err = errors.Join(errs...); err == nil {
		w.mu.Lock()
		for topic, names := range gone {
			if slices.Equal(w.gone[topic], names) { // otherwise others have left meanwhile
				delete(w.gone, topic)
			}
		}
		w.mu.Unlock()
	}
	return err
}

// compareLimits says which topics have other limits in Redis than in the file, because somebody has
// set them there.
func (w *Worker) compareLimits(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	w.mu.Lock()
	limits := map[string]delayq.Limits{}
	var topics []string
	for _, t := range w.file.Topics {
		if t.settings.limits != (delayq.Limits{}) {
			limits[t.Name] = t.settings.limits
			topics = append(topics, t.Name)
		}
	}
	w.mu.Unlock()
	if len(topics) == 0 {
		return
	}
	stats, err := w.Inspector.Stats(ctx, topics...)
	if err != nil {
		return // it is only a hint
	}
	for _, s := range stats {
		if want := limits[s.Topic]; s.Limits != (delayq.Limits{}) && s.Limits.String() != want.String() {
			w.Log.Warn("the limits of a topic are not those of the file, because others were set before; delayq limits changes them",
				"topic", s.Topic, "limits", s.Limits.String(), "file", want.String())
		}
	}
}

// inUse returns the databases of the file that topics use.
func (w *Worker) inUse() []*databaseConfig {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*databaseConfig
	seen := map[*databaseConfig]bool{}
	for _, t := range w.file.Topics {
		for _, d := range t.kind.databases() {
			if !seen[d] {
				seen[d] = true
				list = append(list, d)
			}
		}
	}
	return list
}

// with calls use with the pool of a database.
func (w *Worker) with(ctx context.Context, d *databaseConfig, use func(context.Context, *pool) error) error {
	p, err := w.pools.get(d)
	if err == nil {
		defer p.done()
		err = use(ctx, p)
	}
	if err == nil {
		return nil
	}
	w.mu.Lock()
	redact := w.file.redact
	w.mu.Unlock()
	return fmt.Errorf("database %s: %w", d.name, redact.error(err))
}

// prepareDatabases creates the tables that the file asks for. What fails is tried again by
// databaseLoop.
func (w *Worker) prepareDatabases(ctx context.Context) {
	for _, d := range w.inUse() {
		if err := w.migrate(ctx, d); err != nil && ctx.Err() == nil {
			w.Log.Error("tables not created; it is tried again", "err", err)
		}
	}
}

// migrate creates the tables of a database, if the file asks for that.
func (w *Worker) migrate(ctx context.Context, d *databaseConfig) error {
	if !d.migrate || d.migrated.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dbPatience)
	defer cancel()
	return w.with(ctx, d, func(ctx context.Context, p *pool) error {
		box, _, err := d.inbox()
		if err == nil {
			err = box.Migrate(ctx, p.db)
		}
		if err == nil {
			d.migrated.Store(true)
		}
		return err
	})
}

// databaseLoop creates tables that could not be created before, and deletes old records of inboxes.
func (w *Worker) databaseLoop(ctx context.Context) {
	trimmed, last := time.Time{}, ""
	for {
		pause := trimEvery - time.Since(trimmed)
		if pause <= 0 {
			trimmed, pause = time.Now(), trimEvery
			for _, d := range w.inUse() {
				if err := w.trim(ctx, d); err != nil && ctx.Err() == nil {
					w.Log.Warn("old records of the inbox not deleted", "err", err)
				}
			}
		}
		for _, d := range w.inUse() {
			if !d.migrate || d.migrated.Load() {
				continue
			}
			pause = dbPause
			if err := w.migrate(ctx, d); err != nil && ctx.Err() == nil && err.Error() != last {
				w.Log.Error("tables not created; it is tried again", "err", err)
				last = err.Error()
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-w.loaded:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// trim deletes records that are older than the file says.
func (w *Worker) trim(ctx context.Context, d *databaseConfig) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return w.with(ctx, d, func(ctx context.Context, p *pool) error {
		_, in, err := d.inbox()
		if err == nil {
			_, err = in.Trim(ctx, p.db, d.keep)
		}
		return err
	})
}
