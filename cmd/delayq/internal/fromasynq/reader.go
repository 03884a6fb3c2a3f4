package fromasynq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	page       = 100      // tasks whose IDs are read at a time
	pageBytes  = 8 << 20  // of records that are in memory at a time, unless one alone is larger
	mostRecord = 64 << 20 // a larger record is not read
	mostQueues = 10_000
	mostServer = 10_000
)

// A Reader reads the queues of asynq.
type Reader struct{ rdb redis.UniversalClient }

// New returns the reader of the queues in a Redis.
func New(rdb redis.UniversalClient) *Reader { return &Reader{rdb} }

func key(queue, name string) string { return "asynq:{" + queue + "}:" + name }

// Queues returns the names of all queues.
func (r *Reader) Queues(ctx context.Context) ([]string, error) {
	n, err := r.rdb.SCard(ctx, "asynq:queues").Result()
	if err != nil {
		return nil, err
	}
	if n > mostQueues {
		return nil, fmt.Errorf("asynq:queues has %d queues: name at most %d of them", n, mostQueues)
	}
	list, err := r.rdb.SMembers(ctx, "asynq:queues").Result()
	slices.Sort(list)
	return list, err
}

// A Size is what a queue has. The tasks of groups are not counted.
type Size struct {
	Tasks  map[State]int64
	Groups int64
	Sets   int64 // of tasks that are being made one
	Paused bool
}

// Size counts what a queue has.
func (r *Reader) Size(ctx context.Context, queue string) (*Size, error) {
	pipe := r.rdb.Pipeline()
	counts := map[State]*redis.IntCmd{}
	for _, state := range []State{Pending, Active} {
		counts[state] = pipe.LLen(ctx, key(queue, string(state)))
	}
	for _, state := range []State{Scheduled, Retry, Archived, Completed} {
		counts[state] = pipe.ZCard(ctx, key(queue, string(state)))
	}
	groups, sets, paused := pipe.SCard(ctx, key(queue, "groups")), pipe.ZCard(ctx, key(queue, "aggregation_sets")), pipe.Exists(ctx, key(queue, "paused"))
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("queue %q: %w", queue, err)
	}
	size := &Size{Tasks: map[State]int64{}, Groups: groups.Val(), Sets: sets.Val(), Paused: paused.Val() > 0}
	for state, n := range counts {
		size.Tasks[state] = n.Val()
	}
	return size, nil
}

// Servers returns how many live servers each queue has.
func (r *Reader) Servers(ctx context.Context) (map[string]int, error) {
	keys, err := r.rdb.ZRangeByScore(ctx, "asynq:servers", &redis.ZRangeBy{
		Min: strconv.FormatInt(time.Now().Unix(), 10), Max: "+inf", Count: mostServer,
	}).Result()
	if err != nil {
		return nil, err
	}
	of := map[string]int{}
	for _, name := range keys {
		info, err := r.rdb.Get(ctx, name).Bytes()
		if errors.Is(err, redis.Nil) {
			continue // it has ended
		}
		if err != nil {
			return nil, err
		}
		const queues = 5
		err = eachField(info, func(field protowire.Number, text []byte, _ int64) error {
			if field != queues {
				return nil
			}
			queue, _, err := entry(text)
			of[queue]++
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return of, nil
}

// EachGroup calls see for each group of a queue, with the number of its tasks. A group can be seen
// twice if others come and go meanwhile.
func (r *Reader) EachGroup(ctx context.Context, queue string, see func(group string, n int64) error) error {
	for cursor := uint64(0); ; {
		groups, next, err := r.rdb.SScan(ctx, key(queue, "groups"), cursor, "", page).Result()
		if err != nil {
			return err
		}
		for _, group := range groups {
			n, err := r.rdb.ZCard(ctx, key(queue, "g:"+group)).Result()
			if err != nil {
				return err
			}
			if err := see(group, n); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// Each calls see for all tasks of a queue in a state, a few at a time, and of one group if the
// state is Aggregating. See returns how many of its tasks it has deleted.
//
// A task that has the state all the time is seen at least once, whatever else happens to the queue.
// For pending tasks that takes to know what shrinks the list: servers do at its old end. If none
// runs, the oldest task is seen first. If one does, the newest one is, and can be seen twice.
func (r *Reader) Each(ctx context.Context, queue string, state State, group string, served bool, see func([]*Task) (deleted int, err error)) error {
	if state == Pending {
		return r.eachPending(ctx, queue, served, see)
	}
	name := key(queue, string(state))
	if state == Aggregating {
		name = key(queue, "g:"+group)
	}
	for cursor := uint64(0); ; {
		list, next, err := r.rdb.ZScan(ctx, name, cursor, "", page).Result()
		if err != nil {
			return err
		}
		var tasks []*Task
		for i := 0; i+1 < len(list); i += 2 {
			score, err := strconv.ParseFloat(list[i+1], 64)
			if err != nil {
				return fmt.Errorf("%s: score of %q: %w", name, list[i], err)
			}
			tasks = append(tasks, &Task{Queue: queue, State: state, ID: list[i], Score: int64(score)})
		}
		for part := range slices.Chunk(tasks, page) {
			if _, err := r.inParts(ctx, part, see); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// eachPending is Each for pending tasks, which are in a list: new ones come in at its head, and
// servers take them from its tail.
func (r *Reader) eachPending(ctx context.Context, queue string, served bool, see func([]*Task) (deleted int, err error)) error {
	name := key(queue, string(Pending))
	for at := int64(0); ; {
		from, to := -at-page, -at-1
		if served {
			from, to = at, at+page-1
		}
		ids, err := r.rdb.LRange(ctx, name, from, to).Result()
		if err != nil || len(ids) == 0 {
			return err
		}
		if !served {
			slices.Reverse(ids)
		}
		tasks := make([]*Task, len(ids))
		for i, id := range ids {
			tasks[i] = &Task{Queue: queue, State: Pending, ID: id}
		}
		deleted, err := r.inParts(ctx, tasks, see)
		if err != nil {
			return err
		}
		at += int64(len(ids) - deleted)
	}
}

// inParts reads the records of tasks, and calls see for as many as fit into memory. It leaves out
// tasks that have left the state.
func (r *Reader) inParts(ctx context.Context, tasks []*Task, see func([]*Task) (deleted int, err error)) (deleted int, err error) {
	pipe := r.rdb.Pipeline()
	sizes := make([]*redis.Cmd, len(tasks))
	for i, t := range tasks {
		sizes[i] = pipe.Do(ctx, "HSTRLEN", key(t.Queue, "t:"+t.ID), "msg")
	}
	if len(tasks) > 0 {
		if _, err := pipe.Exec(ctx); err != nil {
			return 0, err
		}
	}
	for i, t := range tasks {
		if t.Size, err = sizes[i].Int(); err != nil {
			return 0, err
		}
	}
	for len(tasks) > 0 {
		n, bytes := 0, 0
		for n < len(tasks) && (n == 0 || bytes+tasks[n].Size <= pageBytes) {
			bytes += tasks[n].Size
			n++
		}
		part, err := r.read(ctx, tasks[:n])
		if err != nil {
			return deleted, err
		}
		if tasks = tasks[n:]; len(part) == 0 {
			continue
		}
		gone, err := see(part)
		if deleted += gone; err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}

// read reads the records of tasks, and returns those that are still in their state.
func (r *Reader) read(ctx context.Context, tasks []*Task) (list []*Task, err error) {
	pipe := r.rdb.Pipeline()
	replies := make([]*redis.SliceCmd, len(tasks))
	for i, t := range tasks {
		fields := []string{"state", "group", "msg"}
		if t.Size > mostRecord {
			fields = fields[:2]
		}
		replies[i] = pipe.HMGet(ctx, key(t.Queue, "t:"+t.ID), fields...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	for i, t := range tasks {
		reply := replies[i].Val()
		if state, _ := reply[0].(string); State(state) != t.State {
			continue // it has moved on
		}
		t.Group, _ = reply[1].(string)
		if t.Size > mostRecord {
			t.Broken = fmt.Errorf("the record has %d bytes: at most %d are read", t.Size, mostRecord)
		} else {
			record, _ := reply[2].(string)
			t.Broken = t.decode([]byte(record))
		}
		list = append(list, t)
	}
	return list, nil
}

// drop deletes a task, and the lock that it holds, unless it has moved on. As asynq does, it leaves
// a lock that another task holds.
const drop = `
local state = redis.call("HGET", KEYS[1], "state")
if state ~= ARGV[2] then
  return 0
end
local removed
if state == "pending" then
  removed = redis.call("LREM", KEYS[2], ARGV[3], ARGV[1])
else
  removed = redis.call("ZREM", KEYS[2], ARGV[1])
end
if removed == 0 then
  return 0
end
if state == "aggregating" and redis.call("EXISTS", KEYS[2]) == 0 then
  redis.call("SREM", KEYS[3], ARGV[4])
end
if KEYS[4] and redis.call("GET", KEYS[4]) == ARGV[1] then
  redis.call("DEL", KEYS[4])
end
redis.call("DEL", KEYS[1])
return 1
`

// Delete deletes tasks that are in the state in which they were read. It reports which ones it has
// deleted: all others have moved on. served is that of Each.
func (r *Reader) Delete(ctx context.Context, tasks []*Task, served bool) ([]bool, error) {
	end := -1 // of the list, at which it is looked for first
	if served {
		end = 1
	}
	pipe := r.rdb.Pipeline()
	replies := make([]*redis.Cmd, len(tasks))
	for i, t := range tasks {
		in := string(t.State)
		if t.State == Aggregating {
			in = "g:" + t.Group
		}
		keys := []string{key(t.Queue, "t:"+t.ID), key(t.Queue, in), key(t.Queue, "groups")}
		if t.UniqueKey != "" {
			keys = append(keys, t.UniqueKey)
		}
		replies[i] = pipe.Eval(ctx, drop, keys, t.ID, string(t.State), end, t.Group)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	done := make([]bool, len(tasks))
	for i, reply := range replies {
		n, err := reply.Int()
		if err != nil {
			return nil, err
		}
		done[i] = n == 1
	}
	return done, nil
}
