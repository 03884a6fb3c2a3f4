
-- check_limits: finds what is wrong with the rules, the holds and the limits of keys.
-- Gives: note_limits settings holds running tats
-- Expects: now anchor key_of lane_range offer rouse flow_of rule_of holder_of held_by till_of part
-- Expects: repair found entries leases ready turn lane keyed rules parked holders rates meta sizes
--
-- unreadable is a malformed rule, hold, entry or tat. Entries in holders of jobs that are not
-- running are removed, and keys that are parked for longer than any lease and their rates say get
-- turns. They are no finding, because unpark comes after the end of a job.

local flow_form = '^' .. string.rep(' %d+', 6) .. ' ' -- later releases may write more

-- note_limits notes in sizes that the topic has limits, if that was lost. With pcall: a key of a
-- wrong type is a finding of its own.
local function note_limits(limited)
  local set = repair == '1' and redis.pcall('HGET', meta, 'flow')
  if repair == '1' and (limited or type(set) == 'string' and string.find(set, '[1-9]'))
    and redis.pcall('HEXISTS', sizes, 'limits') == 0 then
    redis.pcall('HDEL', sizes, '') -- after a deletion, the script can write at maxmemory
    redis.pcall('HSET', sizes, 'limits', 1)
  end
end

-- settings checks what is set for keys, and notes that some have limits if that was lost.
local function settings()
  local limited = false
  for i = 1, #entries, 2 do
    local more = string.match(entries[i + 1], '^[1-9]%d*(.*)$') -- than a weight
    local readable = #entries[i] <= 255
      and (more == '' or string.match((more or '') .. ' ', flow_form))
    if not readable and found(part, entries[i], 'unreadable', true) then
      redis.call('HDEL', rules, entries[i])
    end
    limited = limited or readable and more ~= ''
  end
  local noted = limited and repair == '1' and redis.call('HGET', meta, 'limited')
  if limited and repair == '1' and (tonumber(noted or 0) or 0) < 1 then
    redis.call('HDEL', meta, '') -- after a deletion, the script can write at maxmemory
    redis.call('HSET', meta, 'limited', redis.call('HLEN', rules)) -- at least as many as there are
  end
  note_limits(limited)
end

-- excess reports whether a parked key waits longer than any lease and its rate can make it wait.
local last_end, flow
local function excess(key, till)
  if not last_end then
    last_end, flow = now, redis.call('HGET', meta, 'flow')
    local last = redis.call('ZRANGE', leases, -2, -1, 'WITHSCORES')
    for i = 1, #last, 2 do
      if last[i] ~= anchor() then
        last_end = math.max(last_end, math.ceil(last[i + 1]))
      end
    end
  end
  local _, running, emit, burst = rule_of(redis.call('HGET', rules, key), flow_of(flow))
  local tat = emit > 0 and tonumber(redis.call('ZSCORE', rates, key) or 0) or 0
  local full = math.min(math.ceil(tat / 1000), now + burst * emit / 1000 + 16)
  return till > math.max(now, full, running > 0 and last_end or 0)
end

-- unwait gives a key a turn if it has jobs.
local function unwait(key)
  if redis.call('ZLEXCOUNT', lane, lane_range(key)) > 0 then
    offer(turn, {key})
    rouse(ready, 1)
  end
end

-- holds finds keys that no call can have held or parked, and times that none can have set.
local function holds(zset)
  for i = 1, #entries, 2 do
    local key, ending = entries[i], tonumber(entries[i + 1]) or math.huge
    local readable = #key >= 1 and #key <= 255 and ending >= 0 and ending <= 9999999999999
    if not readable and found(part, key, 'unreadable', true) then
      redis.call('ZREM', zset, key)
      if #key <= 255 then
        unwait(key)
      end
    elseif readable and zset == parked and repair == '1' and excess(key, ending) then
      redis.call('ZREM', zset, key)
      unwait(key)
    end
  end
end

-- running drops the entries of jobs that are not running, and of stragglers whose time is over.
local function running()
  for i = 1, #entries, 2 do
    local size = string.byte(entries[i]) or 0
    local key = string.sub(entries[i], 2, size + 1)
    local id = held_by(key, entries[i])
    local place = redis.call('HGET', keyed, id)
    local readable = size > 0 and entries[i] == holder_of(key, id)
    local ended = not (place and key_of(place) == key and redis.call('ZSCORE', leases, id))
    local till = till_of(key, entries[i])
    if till then
      readable, ended = #entries[i] >= size + 19, till <= now
    end
    if not readable and found(part, entries[i], 'unreadable', true)
      or readable and ended and repair == '1' then
      redis.call('ZREM', holders, entries[i])
    end
  end
end

-- tats finds keys that cannot have a rate, and times that no take can have set.
local function tats()
  for i = 1, #entries, 2 do
    local key, tat = entries[i], tonumber(entries[i + 1]) or math.huge
    local readable = #key >= 1 and #key <= 255 and tat >= 0 and tat <= 9007199254740992
    if not readable and found(part, key, 'unreadable', true) then
      redis.call('ZREM', rates, key)
    end
  end
end
