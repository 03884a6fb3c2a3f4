package main

import (
	"context"
	"testing"
	"time"
)

func TestMostWithin(t *testing.T) {
	at := func(ms ...int) (times []time.Time) {
		for _, m := range ms {
			times = append(times, time.UnixMilli(int64(m)))
		}
		return times
	}
	for _, c := range []struct {
		times []time.Time
		want  int
	}{
		{nil, 0},
		{at(5), 1},
		{at(0, 1000, 2000), 1}, // a window ends before a second is over
		{at(0, 999, 1001, 1500, 1998), 4},
	} {
		if got := mostWithin(c.times, time.Second); got != c.want {
			t.Errorf("%v: got %d, want %d", c.times, got, c.want)
		}
	}
}

// A log counts more starts than it has room for, and notes as many as it has.
func TestStartLog(t *testing.T) {
	log := newStartLog(2)
	for range 3 {
		log.note(delivery{})
	}
	<-log.first
	if times := log.times(); len(times) != 2 || times[0].After(times[1]) || log.count.Load() != 3 {
		t.Errorf("got %v of %d", times, log.count.Load())
	}
}

// notingPeer notes what is stored.
type notingPeer struct {
	peer
	sizes, numbers []int
	keys           []string
}

func (p *notingPeer) enqueue(_ context.Context, _ string, j job) error {
	p.sizes = append(p.sizes, len(j.payload))
	p.numbers = append(p.numbers, payloadIndex(j.payload))
	p.keys = append(p.keys, j.key)
	return nil
}

func (p *notingPeer) enqueueAll(ctx context.Context, topic string, jobs []job) error {
	for _, j := range jobs {
		if err := p.enqueue(ctx, topic, j); err != nil {
			return err
		}
	}
	return nil
}

// storeBoth stores jobs 0 to 4 in both ways.
func storeBoth(t *testing.T, p peer) {
	t.Helper()
	err := inParallel(t.Context(), 1, 2, func(ctx context.Context, i int, payload []byte) error {
		fillPayload(payload, i, time.Time{})
		return p.enqueue(ctx, topic, job{payload: payload})
	})
	if err == nil {
		err = fill(t.Context(), p, topic, 2, 5, ready)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Large payloads have their size and the number of their job, also where not
// all fit into memory at a time.
func TestSizedPeer(t *testing.T) {
	for _, size := range []int{10 << 10, partBytes / 2} {
		var noted notingPeer
		measure := sized(size, func(_ context.Context, b *bench, p peer) (sample, error) {
			storeBoth(t, p)
			return nil, nil
		})
		if _, err := measure(t.Context(), &bench{sizes: quickSizes()}, &noted); err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			if noted.sizes[i] != size || noted.numbers[i] != i {
				t.Errorf("job %d is job %d with %d bytes, want %d", i, noted.numbers[i], noted.sizes[i], size)
			}
		}
	}
}

// The jobs of the keys are mixed.
func TestKeyedPeer(t *testing.T) {
	var noted notingPeer
	storeBoth(t, &keyedPeer{&noted, 3})
	for i, key := range noted.keys {
		if want := keyOf(i, 3); key != want || noted.numbers[i] != i {
			t.Errorf("job %d has key %q, want %q", i, key, want)
		}
	}
}
