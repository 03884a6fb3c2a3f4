package lua_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A key whose rate is near its share of the starts gets the lower one of the two, and the others
// share what it leaves by their weights. The time is a fake one, in steps of a tenth of a second.
func TestSharesNearARate(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		for weight, rates := range map[int][]int{1: {10, 18, 20, 22}, 3: {30, 42, 46}} { // in 10 s
			for _, rate := range rates {
				sharesNearARate(b, weight, rate)
			}
		}
	})
}

// sharesNearARate plays a contest of five keys with backlogs, of which the first one has a weight
// and as many starts in 10 s.
func sharesNearARate(b *queuetest.Bubble, weight, rate int) {
	const (
		keys, workers = 5, 4
		warm, steps   = 30, 200 // a start a step, as each job takes four of them on the average
	)
	topic := fmt.Sprintf("weight %d, %d in 10s", weight, rate)
	r := rand.New(rand.NewPCG(uint64(weight), uint64(rate)))
	var deck []int
	c := &contest{h: NewHand(b.T, b.RDB, queuetest.Prefix, topic), weights: map[string]int{}, workers: workers, made: map[string]int{}}
	c.steps = func(string) int {
		if len(deck) == 0 {
			deck = r.Perm(7)
		}
		n := deck[0]
		deck = deck[1:]
		return n + 1
	}
	const limitedKey = "key-2" // neither the first nor the last by name
	for i := range keys {
		key := fmt.Sprint("key-", i)
		limits := delayq.KeyLimits{Weight: 1}
		if key == limitedKey {
			limits = delayq.KeyLimits{Weight: weight, Rate: delayq.Per(rate, 10*time.Second).Burst(2)}
		}
		c.weights[key] = limits.Weight
		c.h.setKeyLimits(key, limits)
		c.add(key, warm+steps)
	}
	counted := 0
	for step := range warm + steps {
		if step == warm {
			counted = len(c.started)
		}
		c.h.Promote()
		c.step()
		b.Pass(100 * time.Millisecond)
	}
	got := map[string]int{}
	for _, key := range c.started[counted:] {
		got[key]++
	}
	all := float64(len(c.started) - counted)
	require.InDelta(b, steps, all, 0.05*steps, "%s: no worker is idle", topic)
	limited := min(float64(rate)/100*steps, all*float64(weight)/float64(weight+keys-1))
	for key := range c.weights {
		want := (all - limited) / (keys - 1)
		if key == limitedKey {
			want = limited
		}
		require.InDelta(b, want, got[key], max(0.1*want, 3), "%s: %s among %v", topic, key, got)
	}
}
