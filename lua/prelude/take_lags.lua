
-- take_lags: the passes of keys, and what those that were parked have missed.
-- Gives: whole_pass text_of seat_of facts_of lag_of keep_lags
-- Expects: rule_of pass_steps turn rules lags
--
-- The others go on while a limit stops a key. So when it comes back, its pass is lower than theirs,
-- and it catches up. It does so for at most two turns of each key that it would keep waiting: a key
-- whose limit allows less than its share would fall behind without end.

-- whole_pass rounds a pass to whole steps.
local function whole_pass(sum)
  return math.floor(sum * pass_steps + 0.5) / pass_steps
end

-- text_of returns a pass as Redis reads it. Many keys of a take have the same one.
local texts = {}
local function text_of(sum)
  local text = texts[sum]
  if not text then
    text = string.format('%.17g', sum)
    texts[sum] = text
  end
  return text
end

-- seat_of returns the first pass of a key that has just joined, and the pass before which it has
-- done so. It returns nil for any other key.
local function seat_of(noted, weight)
  if noted * pass_steps % 1 == 0.5 then
    local joined = math.floor(noted * pass_steps) / pass_steps
    return whole_pass(joined + 1 / weight), joined
  end
end

-- facts_of reads what a hash or a zset says of some keys in turn. With pcall: one of a wrong type
-- says nothing, and must not stop all keys.
local function facts_of(command, source, keys)
  if #keys == 0 or redis.call('EXISTS', source) == 0 then
    return {}
  end
  local facts = redis.pcall(command, source, unpack(keys))
  return facts.err and {} or facts
end

-- The passes of more keys near the head than these are not looked at.
local nearest, least = 15, nil

-- lag_of returns the pass of a key that was parked. lag is the one that it had, and most the
-- highest one that it gets.
local function lag_of(lag, most)
  if not least then
    local list = redis.call('ZRANGE', turn, 0, nearest, 'WITHSCORES')
    local keys = {}
    for i = 1, #list, 2 do
      keys[#keys + 1] = list[i]
    end
    local ruled, was = facts_of('HMGET', rules, keys), facts_of('ZMSCORE', lags, keys)
    least = -math.huge
    for i in ipairs(keys) do
      local weight, score = rule_of(ruled[i] or nil, 0, 0, 1), tonumber(list[2 * i])
      score = seat_of(score, weight) or score
      least = math.max(least, math.min(score, tonumber(was[i] or nil) or score) - 2 / weight)
    end
  end
  return whole_pass(math.min(most, math.max(lag, least)))
end

-- keep_lags keeps the passes of keys that are parked, for ten minutes after the last one, and drops
-- those of keys that are served. It also drops some that are so low that they say nothing: their
-- keys have no jobs any more. With pcall: a pass that is lost is that of the next one.
local function keep_lags(behind, over)
  if #over > 0 then
    redis.pcall('ZREM', lags, unpack(over))
  end
  if #behind > 0 then
    redis.pcall('ZADD', lags, unpack(behind))
    local low = string.format('(%.17g', tonumber(behind[1]) - 4)
    local old = redis.pcall('ZRANGEBYSCORE', lags, '-inf', low, 'LIMIT', 0, #behind)
    if #old > 0 then
      redis.pcall('ZREM', lags, unpack(old))
    end
    redis.pcall('PEXPIRE', lags, 600000)
  end
end
