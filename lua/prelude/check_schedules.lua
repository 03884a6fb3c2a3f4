
-- check_schedules: finds what is wrong with schedules.
-- Gives: definitions rest
-- Expects: now state_of hex part found entries schedules slots waiting fired runs
--
-- no_slot is a schedule that is neither paused nor ended, and in neither slots nor waiting.
-- no_state and no_history lack these. unreadable is a malformed state, or one of another
-- definition, no_schedule what is left over of one without a definition. A schedule that gets a
-- place again has the slot 0: a server computes its first slot from then on.

-- The fields of a state. Those in always must exist, and have these values if nothing is known.
-- Those in maybe are optional; maybe holds their types.
local always = {
  made = now, changed = now, from = now, fired = 0, since = 0, skipped = 0, missed = 0,
}
local maybe = {
  slot = 'number', at = 'number', job = 'string', paused = 'number', ended = 'boolean',
  catching = 'number', trigger = 'number', more = 'number',
}

-- renew repairs a state, and reports whether it was already a valid state of this definition.
local function renew(state, definition)
  local sound = true
  local function field(name, kind, missing)
    local value = state[name]
    local fits = type(value) == kind
    if fits and kind == 'number' then
      fits = value == math.floor(value) and math.abs(value) <= 9999999999999
    end
    if not fits and (value ~= nil or missing) then
      sound = false
      state[name] = missing
    end
  end
  for name, missing in pairs(always) do
    field(name, 'number', missing)
  end
  for name, kind in pairs(maybe) do
    field(name, kind)
  end
  if state.nonce ~= hex(definition) then
    sound, state.nonce = false, hex(definition)
  end
  return sound
end

-- definitions checks the state, the place and the history of each schedule that has a definition.
local function definitions()
  for i = 1, #entries, 2 do
    local name, definition = entries[i], entries[i + 1]
    local text = redis.call('HGET', fired, name)
    local state = state_of(text) or {}
    local what = text and 'unreadable' or 'no_state'
    local stale = not renew(state, definition) and found('fired', name, what, true)
    local placed, cleared = false, false
    for place, zset in pairs({slots = slots, waiting = waiting}) do
      local score = redis.call('ZSCORE', zset, name)
      local at = tonumber(score or nil)
      if at and at % 1 == 0 and at >= 0 and at <= 9999999999999 then
        placed = true
      elseif score and found(place, name, 'bad_time', true) then
        redis.call('ZREM', zset, name)
        cleared = true
      elseif score then
        placed = true
      end
    end
    local astray = not placed and not state.paused and not state.ended
    if astray and (cleared or found('slots', name, 'no_slot', true)) then
      -- A slot that is far in the future was fired before Redis's clock was set back.
      local last = state.slot and state.slot < now + 60000 and state.slot or 0
      stale, state.from, state.catching = true, math.max(now, last), nil
      redis.call('ZREM', slots, '') -- after a deletion, the script can write at maxmemory
      redis.call('ZADD', slots, 0, name)
    end
    if stale then
      redis.call('HDEL', fired, '')
      redis.call('HSET', fired, name, cjson.encode(state))
    end
    local log = redis.pcall('HGET', runs, name)
    local readable = type(log) == 'table' or string.match(log or '', '^%d+ %d+$')
    if not readable and found('runs', name, 'no_history', true) then
      redis.call('HDEL', runs, '')
      redis.call('HSET', runs, name, '0 0')
    end
  end
end

-- rest finds leftovers of schedules without a definition. A run in a history has a field of its
-- own, which begins with the name of its schedule.
local function rest(key, remove)
  for i = 1, #entries, 2 do
    local name = string.match(entries[i], '^(.*)\n%d+$') or entries[i]
    if redis.call('HEXISTS', schedules, name) == 0 and found(part, name, 'no_schedule', true) then
      redis.call(remove, key, entries[i])
    end
  end
end
