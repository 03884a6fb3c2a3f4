
-- take_read: what a take has leased so far, and how it reads the records of candidates.
-- Gives: ids records seen got looked read busy more look_up
-- Expects: bytes sizes pool bucket dead leases

local ids, records, seen = {}, {}, {} -- of the jobs that are leased, or about to be
local got, looked = 0, 0 -- how many those are, and how many IDs were looked at
local read = 0 -- bytes of the records
local busy, more = false, false -- whether the slots or the bytes are used up

-- scores looks up IDs in a zset. Most topics have no dead jobs, and often the bucket is empty too:
-- that costs nothing.
local function scores(zset, waiting)
  return redis.call('EXISTS', zset) == 1 and redis.call('ZMSCORE', zset, unpack(waiting)) or {}
end

-- bounded reports whether n records can exceed bytes, together with those read before. It assumes
-- the largest size.
local largest
local function bounded(n)
  if not largest then
    local noted = redis.pcall('HGET', sizes, 'largest')
    largest = type(noted) == 'table' and bytes or tonumber(noted or nil) or 2000
  end
  return read + n * largest > bytes
end

-- look_up reads the records of IDs that wait. It returns how many of them it covers; the scores
-- that they have in bucket, in dead and, if leased is set, in leases; and the records, false for an
-- ID that does not count. If all records can be too large (strict: if even a single one can), it
-- covers no more than most that count, and ends before a record that would exceed bytes.
local function look_up(waiting, most, leased, strict)
  local n = #waiting
  local delayed, buried = scores(bucket, waiting), scores(dead, waiting)
  leased = leased and scores(leases, waiting)
  if not ((n > 1 or strict) and bounded(n)) then
    return n, delayed, buried, leased, redis.call('HMGET', pool, unpack(waiting))
  end
  local wanted, places, found, total = {}, {}, {}, read
  for i = 1, n do
    if #wanted == most then
      n = i - 1
      break
    end
    local apart = delayed[i] or buried[i] or leased and leased[i]
    local size = apart and 0 or redis.call('HSTRLEN', pool, waiting[i])
    if size > 0 and total > 0 and total + size > bytes then
      n = i - 1
      break
    end
    if size > 0 then
      total = total + size
      wanted[#wanted + 1], places[#places + 1] = waiting[i], i
    end
  end
  for i, record in ipairs(#wanted > 0 and redis.call('HMGET', pool, unpack(wanted)) or {}) do
    found[places[i]] = record
  end
  return n, delayed, buried, leased, found
end
