
-- prune_notes: deletes what is left over in notes.
-- Gives: prune_notes
-- Expects: left_over stray reports notes pool sizes next

-- prune_notes looks at so many fields, or at fewer if they are much work, and reads about 1 MiB of
-- them. It goes on behind them in the next call. It returns 1 if much was left over and there is
-- more, else 0.
local function prune_notes(fields)
  redis.call('HDEL', notes, '') -- after a deletion, the script can write at maxmemory
  local cursor = redis.call('HGET', sizes, 'notes')
  cursor = string.match(cursor or '', '^%d+$') or '0'
  local looked, bytes, read, work, deleted = 0, 0, 0, 0, 0
  local report
  repeat
    local page, gone = redis.call('HSCAN', notes, cursor, 'COUNT', 10), {}
    cursor, work = page[1], work + 2
    for i = 1, #page[2], 2 do
      local field, value = page[2][i], page[2][i + 1]
      local left, _, size = left_over(notes, pool, field, value, read)
      if string.find(field, '^l') then
        left, size = stray(pool, next, string.sub(field, 2), value, read)
        if left then
          report = report or reports()
          report.add(string.sub(field, 2), value, 'g', 'the job is gone', false)
          left, deleted = false, deleted + 1
        end
      end
      looked, bytes, read = looked + 1, bytes + #value, read + (size or 0)
      work = work + (string.find(field, '^[pls]') and 2 or 0)
      if left then
        gone[#gone + 1] = field
      end
    end
    for first = 1, #gone, 1000 do
      local last = math.min(first + 999, #gone)
      deleted = deleted + redis.call('HDEL', notes, unpack(gone, first, last))
    end
  until cursor == '0' or looked >= fields or work >= 400 or bytes + read > 1048576
  if report then
    report.close()
  end
  if cursor == '0' then
    redis.call('HDEL', sizes, 'notes')
  else
    redis.call('HSET', sizes, 'notes', cursor)
  end
  return cursor ~= '0' and deleted * 4 >= looked and 1 or 0
end
