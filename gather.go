package delayq

import (
	"errors"
	"fmt"
	"time"
)

// A GatherWindow says how long a batch handler gathers jobs: see [Gather].
type GatherWindow struct {
	// Size is the number of ready jobs that are enough for a batch: from 1 to the [BatchSize]. 0 is
	// the BatchSize.
	Size int
	// Wait is how long jobs are gathered at most if there are fewer: from 1 ms to 24 h.
	Wait time.Duration
	// ByKey gathers the jobs of each [Key] by themselves. A batch then has the jobs of one key. It
	// needs a BatchSize of at most 250, and cannot be combined with [InPool].
	ByKey bool
}

const (
	mostGathered  = 24 * time.Hour
	mostKeyBatch  = 250 // what a take of jobs with keys can return
	leastGathered = time.Millisecond
)

// Gather makes a handler of [Server.HandleBatch] wait for jobs until there are Size of them, or for
// as long as Wait, whichever comes first. The jobs stay in Redis meanwhile. So a crash loses none,
// no lease is held and no attempt used, and all servers of the topic gather together. Give all of
// them the same window.
//
// Without ByKey, Wait begins when a server finds the first job. With ByKey, it begins at the due
// time of the first job of the key, so the jobs of a crashed server run again at once. Jobs without
// a key are then a key of their own, and are not gathered.
//
// A batch can still have fewer jobs than Size: if some are cancelled at the last moment, if its
// records exceed 1 MiB, or if [Limits] let fewer start. It has more, up to the [BatchSize], if more
// are ready. Other servers that handle the topic without Gather take the jobs at once.
//
// While jobs are gathered, each job that becomes ready costs one more take.
func Gather(w GatherWindow) HandlerOption {
	return handlerOption(func(o *handlerOptions) { o.window = &w })
}

// gather returns the window of a batch handler, zero without one. It adds the errors.
func (o *handlerOptions) gather() GatherWindow {
	if o.window == nil {
		return GatherWindow{}
	}
	w := *o.window
	if w.Size == 0 {
		w.Size = o.batchSize
	}
	if w.Size < 1 || w.Size > o.batchSize {
		o.errs = append(o.errs, fmt.Errorf("GatherWindow.Size(%d): must be from 1 to the BatchSize, %d", w.Size, o.batchSize))
	}
	if w.Wait < leastGathered || w.Wait > mostGathered {
		o.errs = append(o.errs, fmt.Errorf("GatherWindow.Wait(%v): must be from %v to %v", w.Wait, leastGathered, mostGathered))
	}
	if w.ByKey && o.batchSize > mostKeyBatch {
		o.errs = append(o.errs, fmt.Errorf("BatchSize(%d): must be at most %d with GatherWindow.ByKey", o.batchSize, mostKeyBatch))
	}
	if w.ByKey && o.pooled {
		o.errs = append(o.errs, errors.New("GatherWindow.ByKey and InPool: only one of them can be given"))
	}
	return w
}
