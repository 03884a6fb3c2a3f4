-- schedule_set: creates schedules, or replaces them. An identical schedule is left unchanged.
--
-- KEYS[1]  schedules   hash, schedule to definition
-- KEYS[2]  slots       zset, schedule scored by its next slot (Unix ms)
-- KEYS[3]  waiting     zset, schedule scored by the slot that waits for its last run to finish
-- KEYS[4]  fired       hash, schedule to the state of its slots
-- KEYS[5]  runs        hash, schedule to the history of its runs
-- KEYS[6]  receipt     string, the last call of the series and its reply
-- ARGV[1]  number      number of this call in its series
-- ARGV[2]  name        the schedule
-- ARGV[3]  definition  nonce, then the part that is compared with the existing definition
-- ARGV[4]  nonce       that of the definition that the caller has read, empty if there was none
-- ARGV[5]  slot        its first slot, 0 if a server must compute it, + if it is now
-- ARGV[6]  tick        ms, how far ahead timers look without a wake-up
-- ARGV[7]  channel     the control channel
-- ARGV[8]  topic       the topic's name, for the control channel
-- ARGV[9..] others     four values of each other schedule: name, definition, nonce, slot. At most
--                      500 schedules a call (unpack has a stack limit), and none twice
--
-- Counts, history and a pause stay as they are. A waiting slot is skipped, because it belonged to
-- the old definition. The definitions are written last: if something fails before, a call with the
-- same schedules does the rest.
-- Returns {'ok', now, what}: a word for each schedule, with spaces between them: new, replaced,
-- same, changed (by another caller: nothing was done), or later: nothing was done, because the call
-- has read 1 MiB of existing definitions.
-- Cost: O(schedules × log N).
-- Uses: now receipt control schedule
local schedules, slots, waiting = KEYS[1], KEYS[2], KEYS[3]
local fired, runs, receipt = KEYS[4], KEYS[5], KEYS[6]
local number, name, definition, nonce, slot = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local tick, channel, topic = tonumber(ARGV[6]), ARGV[7], ARGV[8]
local others, first = ARGV, 9

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local names, given = {name}, {{definition, nonce, slot}}
for at = first, #others, 4 do
  names[#names + 1] = others[at]
  given[#given + 1] = {others[at + 1], others[at + 2], others[at + 3]}
end
-- A wrong type causes an error before the first write.
local due = redis.call('ZMSCORE', slots, unpack(names))
local waits = redis.call('ZMSCORE', waiting, unpack(names))
local states = redis.call('HMGET', fired, unpack(names))
local logs = redis.call('HMGET', runs, unpack(names))
local words, budget, soon = {}, 1048576, false
local put, gone, begun, states_put, put_definitions = {}, {}, {}, {}, {}

-- judge compares a schedule with the existing one. It returns the word for it.
local function judge(i, state, fresh, known)
  local size = redis.call('HSTRLEN', schedules, names[i])
  if i > 1 and size > budget then
    budget = 0
    return 'later'
  elseif size == 0 then
    return known == '' and 'new' or 'changed'
  end
  budget = budget - size
  local old = redis.call('HGET', schedules, names[i])
  local placed = state and (state.paused or state.ended or due[i] or waits[i])
  -- Otherwise its place or its state was lost, by an eviction or a manual edit.
  if placed and string.sub(old, 9) == string.sub(fresh, 9) then
    return 'same'
  end
  return hex(old) == known and 'replaced' or 'changed'
end

for i, id in ipairs(names) do
  local fresh, at = given[i][1], given[i][3]
  local state = state_of(states[i])
  words[i] = judge(i, state, fresh, given[i][2])
  if words[i] == 'new' or words[i] == 'replaced' then
    state = state or {fired = 0, skipped = 0, missed = 0, made = now}
    -- A slot that is due and not fired yet is still fired, with the new definition. Otherwise a
    -- slot that has passed, or that the old definition has fired, does not count. Then a server
    -- must compute the next one.
    local present, fired_last = tonumber(due[i] or nil), 0
    if state.slot and state.slot < now + 60000 then
      fired_last = state.slot -- otherwise Redis's clock has been set back
    end
    state.from = math.max(now, fired_last)
    if present and present > 0 and present <= now then
      at = due[i]
    elseif at == '+' then
      at = string.format('%.0f', math.max(now, fired_last + 1)) -- each slot has an ID of its own
    elseif tonumber(at) <= state.from then
      at = '0'
    end
    state.nonce, state.since, state.changed = hex(fresh), state.fired, now
    state.ended, state.catching = nil, nil
    if not state.paused then
      put[#put + 1], put[#put + 2] = at, id
    end
    if waits[i] then
      state.skipped = state.skipped + 1
      gone[#gone + 1] = id
    end
    if not logs[i] then
      begun[#begun + 1], begun[#begun + 2] = id, '0 0'
    end
    states_put[#states_put + 1], states_put[#states_put + 2] = id, cjson.encode(state)
    put_definitions[#put_definitions + 1], put_definitions[#put_definitions + 2] = id, fresh
    soon = soon or at - now <= tick
  end
end
if #put > 0 then
  redis.call('ZADD', slots, unpack(put))
end
if #gone > 0 then
  redis.call('ZREM', waiting, unpack(gone))
end
if #begun > 0 then
  redis.call('HSET', runs, unpack(begun))
end
if #put_definitions > 0 then
  redis.call('HSET', fired, unpack(states_put))
  redis.call('HSET', schedules, unpack(put_definitions))
end
if soon then
  nudge(channel, 'wake', topic, 0, '')
end
words = table.concat(words, ' ')
remember(receipt, number, words)
return {'ok', now, words}
