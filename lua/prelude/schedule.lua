-- state_of reads what fired holds of a schedule: a table, or nil if there is none or it cannot be read.
local function state_of(text)
  local ok, state = pcall(cjson.decode, text or '')
  return ok and type(state) == 'table' and state or nil
end

-- hex writes the first eight bytes of a record, its nonce, in a way that JSON can hold.
local function hex(record)
  return (string.gsub(string.sub(record, 1, 8), '.', function(byte) return string.format('%02x', string.byte(byte)) end))
end

-- going tells whether the job that a schedule fired last has not ended: it has a record, and is not dead. The record is not read: it may
-- be large.
local function going(pool, dead, state)
  return state.job and redis.call('HEXISTS', pool, state.job) == 1 and not redis.call('ZSCORE', dead, state.job)
end
