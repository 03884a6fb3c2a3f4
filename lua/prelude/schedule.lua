
-- Gives: state_of hex going

-- state_of parses the state of a schedule, as fired holds it. It returns a table, or nil if there
-- is none or it cannot be read.
local function state_of(text)
  local ok, state = pcall(cjson.decode, text or '')
  return ok and type(state) == 'table' and state or nil
end

-- hex returns the first eight bytes of a record, its nonce, in a form that JSON can hold.
local function hex(record)
  return (string.gsub(string.sub(record, 1, 8), '.', function(byte)
    return string.format('%02x', string.byte(byte))
  end))
end

-- going reports whether the job that a schedule fired last is unfinished: it has a record, and is
-- not dead. The record is not read, because it can be large.
local function going(pool, dead, state)
  return state.job and redis.call('HEXISTS', pool, state.job) == 1
    and not redis.call('ZSCORE', dead, state.job)
end
