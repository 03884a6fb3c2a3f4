
-- lone_end: ends the call of a job that is sent alone. receipt is written before the job gets its
-- place, because what it was says whether the call is new. If the job has got no place, receipt
-- becomes what it was.
-- Expects: placed now before pool stats receipt number id record at

if type(placed) ~= 'number' then
  if before then
    redis.call('SET', receipt, before, 'PX', '180000')
  else
    redis.call('DEL', receipt)
  end
  return placed or {'known', now} -- placed is an error
end
redis.call('HSET', pool, id, record)
if redis.pcall('HINCRBY', stats, 'enqueued', '1') == 1 then
  redis.pcall('SET', receipt, number .. ':+' .. at .. ' ', 'PX', '180000')
  return {'ok', now, '', '', '+'}
end
return now
