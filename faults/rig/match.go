package rig

import (
	"crypto/sha1" //nolint:gosec // how Redis names scripts
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/delayq/delayq"
)

// A Match picks commands by their words. It is called under a lock and must be quick.
type Match func(words [][]byte) bool

// Command matches commands by name, in any case: Command("BLMOVE").
func Command(names ...string) Match {
	return func(words [][]byte) bool {
		for _, name := range names {
			if strings.EqualFold(string(words[0]), name) {
				return true
			}
		}
		return false
	}
}

// Script matches calls of delayq's scripts by name: Script("take", "ack").
func Script(names ...string) Match {
	all := delayq.Scripts()
	digests := make(map[string]bool)
	for _, name := range names {
		digest, ok := all[name]
		if !ok {
			panic("delayq has no script " + name)
		}
		digests[digest] = true
	}
	return func(words [][]byte) bool {
		if len(words) < 2 {
			return false
		}
		switch strings.ToLower(string(words[0])) {
		case "evalsha":
			return digests[string(words[1])]
		case "eval":
			sum := sha1.Sum(words[1]) //nolint:gosec // how Redis names scripts
			return digests[hex.EncodeToString(sum[:])]
		}
		return false
	}
}

// Every matches each n-th of what m matches, beginning with the n-th.
func Every(n int, m Match) Match {
	seen := 0
	return func(words [][]byte) bool {
		if !m(words) {
			return false
		}
		seen++
		return seen%n == 0
	}
}

// Sometimes matches what m matches with probability p.
func Sometimes(p float64, seed uint64, m Match) Match {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // not for secrets
	return func(words [][]byte) bool {
		mu.Lock()
		defer mu.Unlock()
		return m(words) && r.Float64() < p
	}
}
