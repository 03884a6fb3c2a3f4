-- recall: reads what a job has noted (see note): how far it has come, and the results of its steps.
-- Writes nothing.
--
-- KEYS[1]   notes   hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[2]   leases  zset, job ID scored by the end of its lease
-- ARGV[1]   id      the job
-- ARGV[2]   nonce   of its record (8 bytes)
-- ARGV[3]   bytes   how many bytes of results to read at most; always at least one result
-- ARGV[4]   fence   of the run that asks
-- ARGV[5..]  names  the steps, at most 100. None: all that the job has noted
--
-- Returns {'ok', now, note, results, letter}: the note is empty if the job has noted nothing. The
-- results are those of the first of these steps, as many as bytes allows, with nothing for a step
-- that is not known. The letter is l if there is no note, and the lease is not the one that the
-- fence names: the note can have gone with the job. Otherwise it is o.
-- Cost: O(names).
-- Uses: now owns steps
local notes, leases = KEYS[1], KEYS[2]
local id, nonce, bytes, fence = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local names, first = ARGV, 5

local note, asked = redis.call('HGET', notes, 'p' .. id) or '', {}
if string.sub(note, 1, 8) ~= nonce then
  return {'ok', now, '', {}, owns(redis.call('ZSCORE', leases, id), fence) and 'o' or 'l'}
end
for i = first, #names do
  asked[#asked + 1] = names[i]
end
if #asked == 0 then
  asked = steps_in(note)
end
local results, size = {}, 0
for i, name in ipairs(asked) do
  local field = 's' .. #id .. ':' .. id .. nonce .. name
  size = size + redis.call('HSTRLEN', notes, field)
  if i > 1 and size > bytes then
    break
  end
  results[i] = redis.call('HGET', notes, field)
end
return {'ok', now, note, results, 'o'}
