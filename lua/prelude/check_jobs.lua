
-- check_jobs: finds what is wrong with jobs, with their books and with what is kept of done ones.
-- Gives: nowhere records places books kept outcomes successors
-- Expects: now sized anchor order_of block is_foremost close_books has_key of_record place_of part
-- Expects: place_rest
-- Expects: repair found entries pool bucket leases dead attempts errors moved done results sizes
-- Expects: lane keyed meta blockers next successor_of
--
-- no_record is an ID without a record, two_places a job in two of its places, orphan books of no
-- job, unreadable malformed books, bad_time an impossible time. The books of a job are its entries
-- in attempts, errors and moved. no_lane is a job with a key whose entry in keyed is no place of
-- its nonce and key, no_block one that its key must wait for and that is not in blockers. For an ID
-- in leases only the books are repaired, because the job belongs to its server.

local nowhere = {} -- see what check returns

-- timed finds an impossible time: possible ones have at most 13 digits. The caller determines the
-- due time of a job in the bucket.
local function timed(zset, id, score)
  local beyond = (tonumber(score) or math.huge) > 9999999999999
  if beyond and found(part, id, 'bad_time', zset ~= bucket) then
    redis.call('ZREM', zset, '') -- after a deletion, the script can write at maxmemory
    redis.call('ZADD', zset, now, id)
  end
end

-- enqueued returns when the record of a job was written.
local function enqueued(record)
  return tonumber(string.sub(record, 13, 25)) or 0
end

-- strip removes the leftovers of a former job with the same ID.
local function strip(id)
  redis.call('ZREM', dead, id)
  close_books(attempts, errors, moved, {id})
end

-- is_own reports whether a place is one of a record, by its nonce and its key.
local function is_own(place, record)
  local first = string.sub(record, 27, 27 + string.byte(record, 27))
  return #place == #first + place_rest and string.sub(place, 1, #first) == first
    and of_record(place, record)
end

-- relate checks the place of a job that does not wait. due is false for one that is dead and has
-- none. delayed is true for one in bucket alone.
local ordered -- nil: not known
local function relate(id, record, place, due, delayed)
  local has = has_key(record)
  if place and not has and found('keyed', id, 'orphan', true) then
    redis.call('ZREM', lane, place .. id)
    redis.call('HDEL', keyed, id)
  elseif has and due and not (place and is_own(place, record))
    and found('keyed', id, 'no_lane', true) then
    redis.call('HDEL', keyed, '') -- after a deletion, the script can write at maxmemory
    redis.call('HSET', keyed, id, place_of(record, due, redis.call('HINCRBY', sizes, 'number', 1)))
  elseif has and delayed and place and is_own(place, record) and is_foremost(place) then
    if ordered == nil then
      ordered = order_of(redis.pcall('HGET', meta, 'flow'))
    end
    local there = not ordered or redis.call('ZSCORE', blockers, place .. id)
    if not there and found('blockers', id, 'no_block', true) then
      redis.call('ZREM', blockers, '') -- after a deletion, the script can write at maxmemory
      block(blockers, {id}, {place})
    end
  end
end

-- records checks the places of jobs by their records, and finds jobs without one.
local function records()
  local largest, laned = 0, redis.call('EXISTS', keyed) == 1
  for i = 2, #entries, 2 do
    largest = math.max(largest, #entries[i])
  end
  if repair == '1' then
    sized(sizes, largest)
  end
  for first = 1, #entries, 2000 do
    local some, written = {}, {}
    for i = first, math.min(first + 1999, #entries), 2 do
      some[#some + 1] = entries[i]
      written[#some] = entries[i + 1]
    end
    local delayed = redis.call('ZMSCORE', bucket, unpack(some))
    local leased = redis.call('ZMSCORE', leases, unpack(some))
    local buried = redis.call('ZMSCORE', dead, unpack(some))
    local placed = laned and redis.call('HMGET', keyed, unpack(some))
    for i, id in ipairs(some) do
      local place = placed and placed[i]
      if not delayed[i] and not leased[i] and not buried[i] then
        if not place or not redis.call('ZSCORE', lane, place .. id)
          or not of_record(place, written[i]) then
          nowhere[#nowhere + 1] = id
        end
      elseif leased[i] and (delayed[i] or buried[i]) then
        found('leases', id, 'two_places', false)
      elseif delayed[i] and buried[i] and enqueued(written[i]) > tonumber(buried[i]) then
        if found('dead', id, 'two_places', true) then
          strip(id) -- of a former job with this ID, whose record was lost
        end
      elseif delayed[i] and buried[i] and found('bucket', id, 'two_places', true) then
        redis.call('ZREM', bucket, id)
      end
      relate(id, written[i], place,
        delayed[i] or leased[i] and now or buried[i] and place and now,
        delayed[i] and not leased[i])
    end
  end
end

-- places checks the entries of bucket, leases or dead.
local function places(zset)
  local no_job = anchor()
  for i = 1, #entries, 2 do
    local id = entries[i]
    local gone = id ~= no_job and redis.call('HEXISTS', pool, id) == 0
    if gone and found(part, id, 'no_record', zset ~= leases) then
      redis.call('ZREM', zset, id)
    elseif id ~= no_job and (not gone or zset == leases) then
      timed(zset, id, entries[i + 1])
    end
  end
end

-- books checks entries of one to five words, whose numbers have at most 13 digits.
local function books(hash, form)
  for i = 1, #entries, 2 do
    local id = entries[i]
    local what
    if redis.call('HEXISTS', pool, id) == 0 then
      what = not redis.call('ZSCORE', leases, id) and 'orphan'
    elseif form then
      local numbers = {string.match(entries[i + 1], form)}
      what = not numbers[1] and 'unreadable'
      for _, number in ipairs(numbers) do
        what = #number > 13 and 'unreadable' or what
      end
    end
    if what and found(part, id, what, true) then
      redis.call('HDEL', hash, id)
    end
  end
end

-- kept checks the places of done jobs, and outcomes what is kept of them.
local function kept()
  for i = 1, #entries, 2 do
    if redis.call('HEXISTS', results, entries[i]) == 1 then
      timed(done, entries[i], entries[i + 1])
    elseif found(part, entries[i], 'no_record', true) then
      redis.call('ZREM', done, entries[i])
    end
  end
end

local function outcomes()
  for i = 1, #entries, 2 do
    if not redis.call('ZSCORE', done, entries[i]) and found(part, entries[i], 'orphan', true) then
      redis.call('HDEL', results, entries[i])
    end
  end
end

-- successors checks what waits for running jobs. Promote stores what waits for jobs that are gone.
local function successors()
  for i = 1, #entries, 2 do
    local due, _, record = successor_of(entries[i + 1])
    local readable = due and due <= 9999999999999 and #record > 25
    if not readable and found(part, entries[i], 'unreadable', true) then
      redis.call('HDEL', next, entries[i])
    end
  end
end
