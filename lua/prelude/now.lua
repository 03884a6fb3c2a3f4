
-- Gives: time now

-- now is Redis's clock in Unix ms. All due times and lease ends are compared with it and with no
-- other clock.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
