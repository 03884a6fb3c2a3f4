
-- Gives: expected unchanged

-- record_of returns where the record begins in the value of a job: behind the part about the run
-- if the job is done.
local function record_of(value, state)
  local size = state == 'e' and string.match(value, '^(%d+):')
  return size and #size + 2 + size or 1
end

-- expected reports whether a job is as its caller knows it. wanted is '' for every job. Otherwise
-- it begins with the letter of a state, which the score can follow: when a scheduled job is due,
-- when a dead one was buried, until when a done one is kept. For a job that was read, more follows,
-- with | before each: the most bytes of its record, its nonce in hexadecimal digits, its finished
-- attempts and its entry in moved ('' for both: none). The record is the last thing to be looked
-- at, and is read only if it is as short as that. A wanted that cannot be read fits no job. With
-- pcall: the caller may have written something.
local function expected(wanted, letter, score, id, records, attempts, moved)
  if wanted == '' then
    return true
  end
  local state, at, rest = string.match(wanted, '^(%a)(%-?%d*)(.*)$')
  if state ~= letter or at ~= '' and not (tonumber(at) and tonumber(at) == tonumber(score)) then
    return false
  end
  if rest == '' then
    return true
  end
  local bytes, nonce, tried, entry = string.match(rest, '^|(%d+)|(%x*)|(%d*)|(.*)$')
  if not bytes then
    return false
  end
  if letter ~= 'e' and ((redis.pcall('HGET', attempts, id) or '') ~= tried
    or (redis.pcall('HGET', moved, id) or '') ~= entry) then
    return false
  end
  local size = redis.pcall('HSTRLEN', records, id)
  local value = type(size) == 'number' and size <= tonumber(bytes)
    and redis.pcall('HGET', records, id)
  if type(value) ~= 'string' then
    return false
  end
  local from = record_of(value, letter)
  return nonce == string.gsub(string.sub(value, from, from + 7), '.', function(c)
    return string.format('%02x', string.byte(c))
  end)
end

-- unchanged is expected for an unfinished job whose state is not known yet.
local function unchanged(wanted, id, pool, bucket, leases, dead, attempts, moved)
  local leased, buried = redis.call('ZSCORE', leases, id), redis.call('ZSCORE', dead, id)
  local delayed = redis.call('ZSCORE', bucket, id)
  local state = leased and 'u' or buried and 'd' or delayed and 's' or 'r'
  return redis.call('HEXISTS', pool, id) == 1
    and expected(wanted, state, buried or delayed, id, pool, attempts, moved)
end
