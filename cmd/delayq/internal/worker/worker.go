package worker

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"sync"

	"github.com/delayq/delayq"
)

// A Worker serves the topics of a file.
type Worker struct {
	Client    *delayq.Client
	Inspector *delayq.Inspector
	Log       *slog.Logger
	// Load reads the file anew.
	Load func() (*File, []Mistake)

	server     *delayq.Server
	pools      pools
	background sync.WaitGroup
	synced     chan struct{} // signals that there are schedules to synchronise
	loaded     chan struct{} // signals that the file has other databases

	mu     sync.Mutex
	file   *File
	topics map[string]*served
	gone   map[string][]string // schedules of topics that have left the file, until they are removed
}

// A served is a topic that is served, or is about to be, or not to be. Worker.mu guards it.
type served struct {
	name    string
	want    *Topic    // nil: it is not to be served
	applied *settings // with which the server serves it; nil: it does not
	current *current
	busy    bool // somebody makes applied what want says
}

// Start makes the server serve the topics of a file. The server must not run yet.
func (w *Worker) Start(server *delayq.Server, file *File) error {
	w.server, w.synced, w.loaded = server, make(chan struct{}, 1), make(chan struct{}, 1)
	w.topics, w.gone = map[string]*served{}, map[string][]string{}
	return w.apply(file, func(s *served) error { return w.settle(context.Background(), s) })
}

// Run runs the server until ctx is done and its running jobs have ended. Each value of reload makes
// it load the file anew.
func (w *Worker) Run(ctx context.Context, reload <-chan struct{}) error {
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	w.prepareDatabases(ctx)
	w.background.Go(func() { w.syncLoop(background) })
	w.background.Go(func() { w.databaseLoop(background) })
	w.background.Go(func() {
		for {
			select {
			case <-reload:
				w.reload(background)
			case <-background.Done():
				return
			}
		}
	})
	err := w.server.Run(ctx)
	end()
	w.background.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.topics {
		s.current.set(nil)
	}
	return err
}

// reload loads the file anew. A file with a mistake changes nothing.
func (w *Worker) reload(ctx context.Context) {
	file, mistakes := w.Load()
	if len(mistakes) > 0 {
		for _, m := range mistakes {
			w.Log.Error("mistake in the file", "at", m.String())
		}
		w.Log.Error("the file was not loaded, and everything goes on as before", "mistakes", len(mistakes))
		return
	}
	w.mu.Lock()
	old := w.file
	w.mu.Unlock()
	if old.Redis != file.Redis || old.Server != file.Server {
		w.Log.Warn("redis and server have changed, which needs a restart; the rest of the file takes effect")
	}
	err := w.apply(file, func(s *served) error {
		w.background.Go(func() {
			if err := w.settle(ctx, s); err != nil && !errors.Is(err, delayq.ErrServerUsed) {
				w.Log.Error("topic not changed", "topic", s.name, "err", err)
			}
		})
		return nil
	})
	if err != nil {
		w.Log.Error("the file was not loaded, and everything goes on as before", "err", file.redact.error(err))
		return
	}
	w.prepareDatabases(ctx)
	signal(w.loaded)
	w.Log.Info("the file was loaded", "topics", len(file.Topics), "schedules", file.Schedules())
}

// apply makes a file the one that is served. If a handler cannot be made, it changes nothing. It
// calls settle for each topic that nobody settles yet.
func (w *Worker) apply(file *File, settle func(*served) error) error {
	w.mu.Lock()
	made := map[string]*version{}
	for _, t := range file.Topics {
		if s := w.topics[t.Name]; s != nil && s.current.version != nil && reflect.DeepEqual(s.current.version.kind.same(), t.kind.same()) {
			continue
		}
		v, err := newVersion(t, w.Client, &w.pools, file.redact)
		if err != nil {
			for _, v := range made {
				v.leave()
			}
			w.mu.Unlock()
			return err
		}
		made[t.Name] = v
	}
	stays := map[string]bool{}
	var settled []*served
	for _, t := range file.Topics {
		stays[t.Name] = true
		delete(w.gone, t.Name)
		s := w.topics[t.Name]
		if s == nil {
			s = &served{name: t.Name, current: &current{}}
			w.topics[t.Name] = s
		}
		s.want = t
		if v := made[t.Name]; v != nil {
			s.current.set(v)
		}
		if !s.busy {
			s.busy = true
			settled = append(settled, s)
		}
	}
	for name, s := range w.topics {
		if stays[name] {
			continue
		}
		if s.want != nil {
			for _, schedule := range s.want.schedules {
				w.gone[name] = append(w.gone[name], schedule.name)
			}
		}
		s.want = nil
		if !s.busy {
			s.busy = true
			settled = append(settled, s)
		}
	}
	w.file = file
	w.mu.Unlock()
	signal(w.synced)
	var errs []error
	for _, s := range settled {
		errs = append(errs, settle(s))
	}
	return errors.Join(errs...)
}

// settle makes the server serve a topic as it is wanted, until nothing is left to change. To change
// the settings of a topic, the server stops taking its jobs, and goes on when those that run have
// ended.
func (w *Worker) settle(ctx context.Context, s *served) error {
	for {
		w.mu.Lock()
		want, applied := s.want, s.applied
		if want == nil && applied == nil {
			s.current.set(nil)
			delete(w.topics, s.name)
			w.mu.Unlock()
			return nil
		}
		if want != nil && applied != nil && *applied == want.settings {
			s.busy = false
			w.mu.Unlock()
			return nil
		}
		w.mu.Unlock()
		var err error
		if applied != nil {
			err = w.server.Remove(ctx, s.name)
			applied = nil
		} else {
			err = w.server.Handle(s.name, s.current, want.settings.options()...)
			applied = &want.settings
		}
		w.mu.Lock()
		if err != nil {
			s.busy = false
			w.mu.Unlock()
			return err
		}
		s.applied = applied
		w.mu.Unlock()
	}
}
