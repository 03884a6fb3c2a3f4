package places

import (
	"context"
	"math"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// probes is how many scores one round trip of a search tries. With 7, it has an eighth of the range
// left.
const probes = 7

// A Search finds an entry of several zsets by its rank among all of them.
type Search struct {
	Scripts script.Caller
	Zsets   []string // one of each place
	Places  []Ref
	From    string // the lowest score, -inf for all
	To      string // scores end below this one, +inf for all
}

// count returns how many entries of each zset have scores from one on up to another one, for each
// pair of scores.
func (s *Search) count(ctx context.Context, bounds ...[2]string) (counts [][]int64, err error) {
	cmds := make([]redis.Cmder, 0, len(bounds)*len(s.Zsets))
	for _, b := range bounds {
		for _, zset := range s.Zsets {
			cmds = append(cmds, redis.NewIntCmd(ctx, "zcount", zset, b[0], b[1]))
		}
	}
	s.Scripts.Send(ctx, nil, cmds)
	for i := range bounds {
		list := make([]int64, len(s.Zsets))
		for n := range list {
			if list[n], err = cmds[i*len(s.Zsets)+n].(*redis.IntCmd).Result(); err != nil {
				return nil, s.Scripts.Blame(ctx, err, s.Zsets[n])
			}
		}
		counts = append(counts, list)
	}
	return counts, nil
}

func sum(list []int64) (n int64) {
	for _, one := range list {
		n += one
	}
	return n
}

// Passed returns the mark of the last entry that a walk has passed when it has passed that many,
// from the lowest score on, or backward. over reports that there are no more.
func (s *Search) Passed(ctx context.Context, entries int64, backward bool) (m Mark, over bool, err error) {
	counts, err := s.count(ctx, [2]string{s.From, "(" + s.To})
	if err != nil {
		return m, false, err
	}
	all := sum(counts[0])
	if entries >= all {
		return m, true, nil
	}
	rank := entries - 1 // of the entry, from the lowest score on
	if backward {
		rank = all - entries
	}
	at, before, err := s.score(ctx, rank)
	if err != nil {
		return m, false, err
	}
	m, err = s.entry(ctx, at, rank-before)
	return m, false, err
}

// score returns the least ms up to which more entries than a rank have their scores, and how many
// have lower ones.
func (s *Search) score(ctx context.Context, rank int64) (at, before int64, err error) {
	low, high := bound(s.From, 0), bound(s.To, record.MaxTime+1) // it is from low on, and up to high
	for low < high {
		var tried []int64
		for i := int64(1); i <= probes; i++ {
			if one := low + (high-low)*i/(probes+1); one < high && (len(tried) == 0 || one > tried[len(tried)-1]) {
				tried = append(tried, one)
			}
		}
		bounds := make([][2]string, len(tried))
		for i, one := range tried {
			bounds[i] = [2]string{s.From, strconv.FormatInt(one, 10)}
		}
		counts, err := s.count(ctx, bounds...)
		if err != nil {
			return 0, 0, err
		}
		for i, one := range tried {
			if sum(counts[i]) > rank {
				high = one
				break
			}
			low = one + 1
		}
	}
	counts, err := s.count(ctx, [2]string{s.From, strconv.FormatInt(low-1, 10)})
	if err != nil {
		return 0, 0, err
	}
	return low, sum(counts[0]), nil
}

// bound reads a bound of scores.
func bound(text string, none int64) int64 {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(f, 0) {
		return none
	}
	return int64(f)
}

// entry returns the n-th entry of those with one score, in the order of places and IDs.
func (s *Search) entry(ctx context.Context, at, n int64) (m Mark, err error) {
	after, score := "("+strconv.FormatInt(at-1, 10), strconv.FormatInt(at, 10)
	counts, err := s.count(ctx, [2]string{after, score})
	if err != nil {
		return m, err
	}
	for i, has := range counts[0] {
		if n >= has {
			n -= has
			continue
		}
		cmd := redis.NewZSliceCmd(ctx, "zrange", s.Zsets[i], after, score, "byscore", "limit", n, 1, "withscores")
		s.Scripts.Send(ctx, nil, []redis.Cmder{cmd})
		list, err := cmd.Result()
		if err != nil || len(list) == 0 { // it has left meanwhile: then the place itself is as good
			return newMark(score, s.Places[i], ""), s.Scripts.Blame(ctx, err, s.Zsets[i])
		}
		id, _ := list[0].Member.(string)
		return newMark(strconv.FormatFloat(list[0].Score, 'f', -1, 64), s.Places[i], id), nil
	}
	return newMark(score, s.Places[len(s.Places)-1], ""), nil
}
