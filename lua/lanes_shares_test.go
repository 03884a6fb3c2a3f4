package lua_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
)

// A contest is a topic in which keys with backlogs compete for workers. Its time is counted in
// steps: each job takes some, and each step the workers that have become idle take jobs.
type contest struct {
	h       *Hand
	weights map[string]int
	most    map[string]int // the most running jobs of a key; 0: any number
	workers int
	steps   func(key string) int // of one job

	now     int
	busy    []*contestant
	made    map[string]int // jobs of each key
	started []string       // the keys of the jobs, in the order of their starts
}

// A contestant is a running job.
type contestant struct {
	hand.Held
	key  string
	ends int
}

// add enqueues jobs of a key.
func (c *contest) add(key string, n int) {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = key + " " + strconv.Itoa(c.made[key]+i)
	}
	c.made[key] += n
	c.h.putKeyed(key, ids...)
}

// step ends the jobs whose time has come and lets the idle workers take others.
func (c *contest) step() {
	t := c.h.T
	var ended []hand.Held
	var told []any
	for _, one := range c.busy {
		if one.ends <= c.now {
			ended, told = append(ended, one.Held), append(told, one.key, one.ID)
		}
	}
	if len(ended) > 0 {
		c.busy = slices.DeleteFunc(c.busy, func(one *contestant) bool { return one.ends <= c.now })
		require.NotContains(t, c.h.Ack(ended...), "l")
		_, err := c.h.tryUnpark(told...)
		require.NoError(t, err)
	}
	for len(c.busy) < c.workers {
		r, err := c.h.TryTake("", c.workers-len(c.busy), time.Hour)
		require.NoError(t, err)
		got := hand.HeldOf(r)
		for _, one := range got {
			key := c.h.keyOf(one.ID)
			c.busy = append(c.busy, &contestant{one, key, c.now + c.steps(key)})
			c.started = append(c.started, key)
		}
		if len(got) == 0 && r.Number(7) == 0 {
			break
		}
	}
	c.now++
}

// fair returns the share of each key in the starts: by its weight, but no more than its limit
// allows. What that leaves goes to the others.
func (c *contest) fair() map[string]float64 {
	shares, rest := map[string]float64{}, 1.0
	for {
		total, capped := 0, false
		for key, weight := range c.weights {
			if _, known := shares[key]; !known {
				total += weight
			}
		}
		for key, weight := range c.weights {
			most := float64(c.most[key]) / float64(c.workers)
			if _, known := shares[key]; !known && most > 0 && rest*float64(weight)/float64(total) > most {
				shares[key], rest, capped = most, rest-most, true
				break
			}
		}
		if !capped {
			for key, weight := range c.weights {
				if _, known := shares[key]; !known {
					shares[key] = rest * float64(weight) / float64(total)
				}
			}
			return shares
		}
	}
}

// newContest makes a contest of ten keys, one of which is heavy, with one of the kinds of limits.
func newContest(h *Hand, kind string, heavy, workers int, random bool) *contest {
	c := &contest{h: h, weights: map[string]int{}, most: map[string]int{}, workers: workers, made: map[string]int{}}
	r := rand.New(rand.NewPCG(uint64(heavy), uint64(workers)))
	decks := map[string][]int{}
	c.steps = func(key string) int {
		if !random {
			return 4
		}
		if len(decks[key]) == 0 { // of each seven jobs of a key, one takes one step, and one seven
			decks[key] = r.Perm(7)
		}
		n := decks[key][0]
		decks[key] = decks[key][1:]
		return n + 1
	}
	for i := range 10 {
		key := fmt.Sprint("key-", (i+5)%10) // the heavy one is neither the first nor the last by name
		c.weights[key] = 1
		if i == 0 {
			c.weights[key] = heavy
		}
		limits := delayq.KeyLimits{Weight: c.weights[key]}
		switch kind {
		case "running":
			c.most[key] = 1
		case "three":
			c.most[key] = 3
		case "heavy": // the limit of the heavy key is near its share, or below it
			if c.most[key] = 0; i == 0 {
				c.most[key] = 2
			}
			limits.Running = c.most[key]
		case "own":
			c.most[key] = 1 + i%3
			limits.Running = c.most[key]
		case "ordered":
			c.most[key] = 1
		}
		h.setKeyLimits(key, limits)
	}
	switch kind {
	case "running":
		h.setLimits(delayq.Limits{RunningPerKey: 1})
	case "three":
		h.setLimits(delayq.Limits{RunningPerKey: 3})
	case "rate":
		h.setLimits(delayq.Limits{RatePerKey: delayq.Per(1_000_000, time.Second)})
	case "ordered":
		h.setLimits(delayq.Limits{Ordered: true})
	}
	return c
}

// eachContest plays kinds × weights × workers. Every other contest has jobs of random lengths.
func eachContest(t *testing.T, play func(t *testing.T, c *contest)) {
	eachHand(t, func(t *testing.T, h *Hand) {
		heavies, works := []int{1, 1000}, []int{4}
		switch {
		case strings.HasSuffix(t.Name(), "miniredis"): // it is slow
			heavies = []int{3}
		case redistest.Size(10) == 10:
			heavies, works = []int{1, 3, 1000}, []int{1, 7}
		}
		for i, kind := range []string{"none", "running", "three", "own", "heavy", "rate", "ordered"} {
			for j, heavy := range heavies {
				for k, workers := range works {
					random := (i+j+k)%2 == 1
					t.Run(fmt.Sprintf("%s, weight %d, %d workers, random %v", kind, heavy, workers, random), func(t *testing.T) {
						play(t, newContest(NewHand(t, h.RDB, redistest.Prefix(t), "topic"), kind, heavy, workers, random))
					})
				}
			}
		}
	})
}

// Keys with backlogs get shares by their weights, but no more than their limits allow, however near
// these are. What a key with a lower limit leaves is shared by the others.
func TestSharesOfKeys(t *testing.T) {
	const starts = 400
	eachContest(t, func(t *testing.T, c *contest) {
		shares := c.fair()
		for key := range c.weights {
			c.add(key, int(2*starts*shares[key])+20)
		}
		for len(c.started) < starts {
			c.step()
		}
		got := map[string]int{}
		for _, key := range c.started {
			got[key]++
		}
		for key, share := range shares {
			want := starts * share
			require.InDelta(t, want, got[key], max(0.1*want, 3), "%s of weight %d among %v", key, c.weights[key], got)
		}
	})
}

// A key that comes back after a while waits for its share of the turns and no longer: for a job of
// each other key, or as many as that has more weight.
func TestKeyThatComesBackWaitsForItsTurn(t *testing.T) {
	eachContest(t, func(t *testing.T, c *contest) {
		c.weights["lone"] = 1000
		if c.weights["key-5"] < 1000 {
			c.weights["lone"] = c.weights["key-5"]
		}
		c.h.setKeyLimits("lone", delayq.KeyLimits{Weight: c.weights["lone"]})
		for key := range c.weights {
			if key != "lone" {
				c.add(key, 60)
			}
		}
		longest := float64(c.workers)
		for key, weight := range c.weights {
			if key != "lone" {
				longest += 1 + float64(weight)/float64(c.weights["lone"])
			}
		}
		for range 8 {
			for range 3 {
				c.step()
			}
			before := len(c.started)
			c.add("lone", 1)
			for !slices.Contains(c.started[before:], "lone") {
				require.LessOrEqual(t, float64(len(c.started)-before), longest, "starts of others")
				c.step()
			}
		}
	})
}
