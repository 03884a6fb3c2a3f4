
-- tend: stores the successors of jobs that were ended by a release that knows no successors.
-- Gives: tend
-- Expects: now successor_of sized count has_key place_of unblock close_books pool bucket dead
-- Expects: leases attempts errors moved keyed sizes stats blockers parked turn lane ready next

-- tend looks at some successors, and goes on behind them in the next call. A job without a record
-- has ended, and a dead one gives way. The records that it reads have about 1 MiB at most, or are
-- few. It returns how many keys have got a turn. The jobs go to bucket, even if they are due.
local function tend()
  local largest = tonumber(redis.pcall('HGET', sizes, 'largest') or 2000) or 2000
  local some = math.max(1, math.min(100, math.floor(1048576 / largest)))
  local cursor = redis.pcall('HGET', sizes, 'next')
  cursor = type(cursor) == 'string' and string.match(cursor, '^%d+$') or '0'
  local page = redis.pcall('HSCAN', next, cursor, 'COUNT', some)
  if page.err then
    return 0 -- of a wrong type
  end
  if page[1] == '0' then
    redis.pcall('HDEL', sizes, 'next')
  else
    redis.pcall('HSET', sizes, 'next', page[1])
  end
  local turns, stored = 0, 0
  for i = 1, #page[2], 2 do
    local id = page[2][i]
    local ms, why, record = successor_of(page[2][i + 1])
    local there = redis.call('HEXISTS', pool, id) == 1
    local ended = not there and not redis.call('ZSCORE', leases, id)
    if ms and (ended or there and redis.call('ZSCORE', dead, id)) then
      redis.call('ZREM', bucket, '') -- after a deletion, the script can write at maxmemory
      local place = redis.call('EXISTS', keyed) == 1 and redis.call('HGET', keyed, id)
      if place then
        turns = turns + unblock(blockers, parked, turn, lane, ready, {id}, {place})
        redis.call('HDEL', keyed, id)
      end
      if has_key(record) then
        redis.call('HSET', keyed, id,
          place_of(record, ms, redis.call('HINCRBY', sizes, 'number', 1)))
      end
      close_books(attempts, errors, moved, {id})
      sized(sizes, #record)
      redis.call('ZADD', bucket, string.format('%.0f', math.max(ms, now)), id)
      redis.call('ZREM', dead, id)
      redis.call('HSET', pool, id, record)
      redis.pcall('HSET', moved, id, string.format('%.0f ', math.max(ms, now)) .. why .. ' 0 0 0')
      redis.call('HDEL', next, id)
      stored = stored + 1
    end
  end
  count(stats, 'enqueued', stored)
  return turns
end
