
-- wake: wakes the timers of a topic for jobs that are about to enter bucket.
-- Gives: wake
-- Expects: now nudge

-- wake tells the timers when the first of these jobs is due, if one of them may sleep beyond that:
-- it is due within a tick, and before all others. It must be called before the jobs enter bucket.
local function wake(bucket, earliest, tick, channel, topic)
  if earliest - now <= tonumber(tick) then
    local head = redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES')
    if not head[2] or tonumber(head[2]) > earliest then
      nudge(channel, 'wake', topic, 0, '')
    end
  end
end
