package places

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// An Around is what is around a job of a topic with partitions: what all places have together.
type Around struct {
	Leased  int64 // running jobs
	Waiting int   // places in which jobs are ready
	Closing []Remains
}

// A Remains is what a generation before the open one has left.
type Remains struct {
	part.Generation
	Places int   // that have jobs
	Jobs   int64 // unfinished
}

// LookAround reads what is around a job of a topic that has partitions.
func LookAround(ctx context.Context, scripts script.Caller, prefix, topic string, m part.Map, now int64) (a Around, err error) {
	type asked struct{ pool, ready, lane, leases *redis.IntCmd }
	keys := All(prefix, topic, m)
	asks, cmds := make([]asked, len(keys)), []redis.Cmder(nil)
	for i, k := range keys {
		number := func(words ...any) *redis.IntCmd {
			cmd := redis.NewIntCmd(ctx, words...)
			cmds = append(cmds, cmd)
			return cmd
		}
		asks[i] = asked{number("hlen", k.Pool), number("llen", k.Ready), number("zcard", k.Lane), number("zcount", k.Leases, now+1, record.MaxTime)}
	}
	scripts.Send(ctx, nil, cmds)
	for i, cmd := range cmds {
		if err := cmd.Err(); err != nil {
			k := keys[i*len(keys)/len(cmds)]
			return a, In(k, scripts.Blame(ctx, err, k.Pool, k.Ready, k.Lane, k.Leases))
		}
	}
	left := make(map[int]*Remains)
	a.Closing = make([]Remains, len(m)-1)
	for i, g := range m[:len(m)-1] {
		a.Closing[i].Generation = g
		left[g.Number] = &a.Closing[i]
	}
	for i, k := range keys {
		a.Leased += asks[i].leases.Val()
		if asks[i].ready.Val()+asks[i].lane.Val() > 0 {
			a.Waiting++
		}
		if r, n := left[RefOf(k.Topic).Generation], asks[i].pool.Val(); r != nil && n > 0 {
			r.Places, r.Jobs = r.Places+1, r.Jobs+n
		}
	}
	return a, nil
}
