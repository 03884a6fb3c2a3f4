
-- page_jobs: which entries of a walk are jobs in that state that are wanted, and what is read of
-- them.
-- Gives: ids own values lengths looked read_jobs noted_any
-- Expects: walk want bytes most cut begins finished failed words first at entries scores laned pool
-- Expects: bucket leases dead attempts errors results sizes lane keyed notes

-- scores_in returns the scores that the entries have in a zset.
local function scores_in(zset)
  if #entries == 0 or redis.call('ZCARD', zset) == 0 then
    return {}
  end
  return redis.call('ZMSCORE', zset, unpack(entries))
end

local waits = walk == 'ready' or walk == 'lanes'
local delayed = (waits or walk == 'done') and scores_in(bucket) or {}
local buried = walk ~= 'dead' and scores_in(dead) or {}
local leased = walk ~= 'dead' and scores_in(leases) or {}
if walk == 'running' then
  scores, leased = leased, {}
end
-- Entries of lane that are not the places of their jobs are left over, and so are the entries in
-- ready of jobs in lane.
local noted = waits and #entries > 0 and redis.call('EXISTS', keyed) == 1
  and redis.call('HMGET', keyed, unpack(entries)) or {}
local tried = finished > 0 and #entries > 0 and redis.call('HMGET', attempts, unpack(entries)) or {}
local logs = walk ~= 'done' and most >= 0 and redis.call('HLEN', errors) > 0
local noted_any = walk ~= 'done' and most >= 0 and redis.pcall('HLEN', notes)
noted_any = type(noted_any) == 'number' and noted_any > 0
local hash, about = pool, 0
if walk == 'done' then
  hash, about = results, 1024 -- a result is up to 1 KiB about the run, and then the record
end

-- counts reports whether an entry is a job in that state that can be wanted, as far as is known
-- without its record.
local function counts(i, id)
  return not (delayed[i] or buried[i] or leased[i]) and (walk ~= 'running' or scores[i])
    and (walk ~= 'lanes' or noted[i] and noted[i] .. id == laned[i])
    and not (walk == 'ready' and noted[i] and redis.call('ZSCORE', lane, noted[i] .. id))
    and (finished == 0 or (tonumber(tried[i] or 0) or 0) >= finished)
    and string.sub(id, 1, #begins) == begins
    and (walk ~= 'done' or redis.call('HEXISTS', pool, id) == 0)
end

-- matches reports whether a record contains all needles.
local function matches(record)
  for i = first, at - 1 do
    if not record or not string.find(record, words[i], 1, true) then
      return false
    end
  end
  return true
end

-- If no record can be large and most entries are wanted, one command reads all records.
local largest = walk ~= 'done' and most >= 0 and #entries > 0
  and redis.pcall('HGET', sizes, 'largest')
largest = type(largest) ~= 'table' and tonumber(largest or 2000) or bytes
local records
if walk ~= 'done' and most >= 0 and #entries > 0 and largest <= most and largest * #entries <= bytes
  and begins == '' and finished == 0 and failed ~= '1' then
  records = redis.call('HMGET', pool, unpack(entries))
end

local ids, own, values, lengths, looked = {}, {}, {}, {}, 0

-- read_jobs reads the wanted jobs among the entries, at most want, and as many as bytes allows.
local function read_jobs()
  local read = 0
  for i, id in ipairs(entries) do
    if #ids >= want then
      break
    end
    local value, size = records and records[i] or false, 0
    if value then
      size = counts(i, id) and #value or 0
    elseif not records then
      size = counts(i, id) and (most < 0 and 1 or redis.call('HSTRLEN', hash, id)) or 0
    end
    local log = size > 0 and logs and redis.call('HSTRLEN', errors, id) or 0
    if size > 0 and (failed ~= '1' or log > 0) then
      local cost = log + (size <= most and size or 0)
      cost = cost + (noted_any and redis.call('HSTRLEN', notes, 'p' .. id) or 0)
      if read > 0 and read + cost > bytes then
        break
      end
      read = read + cost
      if size > most then
        value = false
      elseif not value then
        value = redis.call('HGET', hash, id)
      end
      if matches(value) then
        local n = #ids + 1
        ids[n], own[n], lengths[n] = id, scores[i] or false, size
        values[n] = value and cut >= 0 and string.sub(value, 1, cut + about) or value
      end
    end
    looked = i
  end
end
