
-- sweep: drops entries of holders that nobody else drops.
-- Gives: sweep
-- Expects: now key_of held_by till_of

-- sweep looks at up to 100 entries, from a place on that depends on the time, if there are more of
-- them than leases. The job of such an entry has ended, and its server has died before it could say
-- so with unpark.
local function sweep(runs_of, leased, places)
  local n = redis.call('ZCARD', runs_of)
  if n <= redis.call('ZCARD', leased) then
    return
  end
  local first = math.max(0, math.min(now % n, n - 100))
  local list, jobs, keys = redis.call('ZRANGE', runs_of, first, first + 99), {}, {}
  for i, entry in ipairs(list) do
    keys[i] = string.sub(entry, 2, 1 + (string.byte(entry) or 0))
    jobs[i] = held_by(keys[i], entry)
  end
  local ends = redis.call('ZMSCORE', leased, unpack(jobs))
  local spots, stale = redis.call('HMGET', places, unpack(jobs)), {}
  for i, entry in ipairs(list) do
    local till = till_of(keys[i], entry)
    if not till and not (ends[i] and spots[i] and key_of(spots[i]) == keys[i])
      or till and till <= now then
      stale[#stale + 1] = entry
    end
  end
  if #stale > 0 then
    redis.call('ZREM', runs_of, unpack(stale))
  end
end
