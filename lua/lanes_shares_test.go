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
	steps   func() int // of one job

	now     int
	busy    []*contestant
	made    map[string]int  // jobs of each key
	started []string        // the keys of the jobs, in the order of their starts
	capped  map[string]bool // keys whose limits allow less than 2.5 times their shares
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
			c.busy = append(c.busy, &contestant{one, key, c.now + c.steps()})
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
	c.capped = map[string]bool{}
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
				c.capped[key] = true
				break
			}
		}
		if !capped {
			for key, weight := range c.weights {
				if _, known := shares[key]; !known {
					shares[key] = rest * float64(weight) / float64(total)
					c.capped[key] = 2.5*shares[key] > float64(c.most[key])/float64(c.workers) && c.most[key] > 0
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
	c.steps = func() int {
		if random {
			return 1 + r.IntN(7)
		}
		return 4
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

// eachContest plays weights × limits × workers.
func eachContest(t *testing.T, play func(t *testing.T, c *contest)) {
	eachHand(t, func(t *testing.T, h *Hand) {
		heavies, works := []int{1, 3, 1000}, []int{1, 4}
		if strings.HasSuffix(t.Name(), "miniredis") { // it is slow
			heavies, works = heavies[1:2], works[1:]
		} else if !testing.Short() {
			heavies, works = append(heavies, 10), append(works, 7)
		}
		for _, kind := range []string{"none", "running", "three", "own", "rate", "ordered"} {
			for _, heavy := range heavies {
				for _, workers := range works {
					for _, random := range []bool{false, true} {
						t.Run(fmt.Sprintf("%s, weight %d, %d workers, random %v", kind, heavy, workers, random), func(t *testing.T) {
							play(t, newContest(NewHand(t, h.RDB, redistest.Prefix(t), "topic"), kind, heavy, workers, random))
						})
					}
				}
			}
		}
	})
}

// Keys with backlogs get shares by their weights, whether a limit or an order stops them in between
// or not, if the limits allow 2.5 times as much. What a key with less leaves is shared by the
// others.
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
		rest, total := len(c.started), 0
		for key, weight := range c.weights {
			if !c.capped[key] {
				total += weight
				continue
			}
			// What such a key misses while its limit stops it, it does not get later. So it gets
			// less than its share, and still more than keys of less weight.
			for other, light := range c.weights {
				if !c.capped[other] && weight >= 3*light {
					least := min(1.8*float64(got[other]), 0.8*shares[key]*float64(len(c.started)))
					require.GreaterOrEqual(t, float64(got[key]), least, "%s among %v", key, got)
				}
			}
			rest -= got[key]
		}
		for key, weight := range c.weights {
			if want := float64(rest*weight) / float64(total); !c.capped[key] {
				require.InDelta(t, want, got[key], max(0.1*want, 3), "%s of weight %d among %v", key, weight, got)
			}
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
