package serve

// adjustLocked tells the pool of the topic how many workers the topic needs. finished is the number
// of those that have just ended their handlers. It does nothing for a topic without a pool.
// The caller unlocks t.Mu with unlock.
func (t *Topic) adjustLocked(finished int) { t.adjustToLocked(t.Workers.Needs(), finished) }

func (t *Topic) adjustToLocked(needs, finished int) {
	w := &t.Workers
	if w.Member == nil || needs == w.Asked && finished == 0 {
		return
	}
	if w.OnDemand && w.Member.Pool.Owes() {
		needs = w.Busy
	}
	w.Asked = needs
	w.Has, w.Share, t.Workers.given = w.Member.Adjust(needs, finished, t.Workers.given)
}

// unlock releases t.Mu. Then it tells the topics that were given workers meanwhile.
func (t *Topic) unlock() {
	given := t.Workers.given
	t.Workers.given = nil
	t.Mu.Unlock()
	for _, other := range given {
		other.Receive()
	}
}

// receive uses the workers that the pool has given to the topic.
func (t *Topic) receive() {
	t.Mu.Lock()
	defer t.unlock()
	t.Workers.Asked = -1 // ask again, to learn how many they are
	t.adjustLocked(0)
	t.startWorkerLocked()
	if t.usableLocked() {
		t.freedLocked()
	}
}

// keen notes whether the first taker waits for room, so that the pool should give it a worker.
func (t *Topic) keen(waits bool) {
	t.Mu.Lock()
	defer t.unlock()
	t.Workers.Keen = waits // the topic can get a pool later
	if t.Workers.Member == nil {
		return
	}
	t.adjustLocked(0)
	if waits && t.usableLocked() {
		t.freedLocked()
	}
}

// usableLocked reports whether the topic can take jobs for a worker of the pool. If it has one and
// cannot, it gives it back: the jobs of the topic that are settled make room.
func (t *Topic) usableLocked() bool {
	idle := t.Workers.Unclaimed() > 0
	if t.roomLocked() > 0 {
		return idle
	}
	if idle {
		t.Workers.Keen = false
		t.adjustLocked(0)
	}
	return false
}

// unclaim gives back the workers that are claimed for takes. Jobs that arrive nevertheless wait for
// others.
func (t *Topic) unclaim() {
	t.Mu.Lock()
	defer t.unlock()
	t.Workers.Claimed, t.Workers.Keen = 0, false
	t.adjustLocked(0)
}
