
-- close_books: deletes the books of jobs.
-- Gives: close_books

-- close_books deletes the finished attempts (tries), the error logs and the present due times of
-- jobs that have ended. With pcall, and after everything else: leftovers never decide the fate of a
-- job.
local function close_books(tries, logs, dues, ended)
  redis.pcall('HDEL', tries, unpack(ended))
  redis.pcall('HDEL', logs, unpack(ended))
  redis.pcall('HDEL', dues, unpack(ended))
end
