-- state_of reads what fired holds of a schedule: a table, or nil if there is none or it cannot be read.
local function state_of(text)
  local ok, state = pcall(cjson.decode, text or '')
  return ok and type(state) == 'table' and state or nil
end

-- hex writes the first eight bytes of a record, its nonce, in a way that JSON can hold.
local function hex(record)
  return (string.gsub(string.sub(record, 1, 8), '.', function(byte) return string.format('%02x', string.byte(byte)) end))
end

-- going tells whether the job that a schedule fired last has not ended: its record is there, and it is not dead.
local function going(pool, dead, state)
  if not state.job or redis.call('ZSCORE', dead, state.job) then
    return false
  end
  local record = redis.call('HGET', pool, state.job)
  return record and hex(record) == state.mark
end
