-- extend: gives the leases that one server holds in a topic a later end.
--
-- KEYS[1]    leases  zset, job ID scored by the end of its lease
-- KEYS[2]    pool    hash, job ID to record
-- ARGV[1]    ending  the new end (Unix ms by Redis's clock). The server chooses it, so that a
--                    repeated call recognises its own work. It must be less than a lease after the
--                    present, and later than the current ends. Empty: the leases are only checked
-- ARGV[2..]  jobs    for each job: ID, fence
--
-- Returns {'ok', now, letters}: one letter a job, o for extended, g for gone (cancelled), l for
-- lost (another server may have it). {'late', now} if the new end is not in the future. At most
-- 1,000 jobs a call.
-- Cost: O(jobs × log N).
-- Uses: now owns
local leases, pool = KEYS[1], KEYS[2]
local ending = ARGV[1]
local jobs, first, width = ARGV, 2, 2

if ending ~= '' and tonumber(ending) <= now then
  return {'late', now}
end

local ids = {}
for at = first, #jobs, width do
  ids[#ids + 1] = jobs[at]
end
local scores = redis.call('ZMSCORE', leases, unpack(ids))
local grants, letters = {}, {}
for i, id in ipairs(ids) do
  local at = first + (i - 1) * width
  if owns(scores[i], jobs[at + 1] .. ' ' .. ending) then
    grants[#grants + 1] = ending
    grants[#grants + 1] = id
    letters[i] = 'o'
  else
    letters[i] = redis.call('HEXISTS', pool, id) == 1 and 'l' or 'g'
  end
end
if #grants > 0 and ending ~= '' then
  redis.call('ZREM', leases, '') -- after a deletion, the script can write at maxmemory
  redis.call('ZADD', leases, 'XX', unpack(grants))
end
return {'ok', now, table.concat(letters)}
