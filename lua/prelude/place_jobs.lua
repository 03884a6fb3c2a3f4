
-- place_jobs: puts new jobs into bucket and ready, but for those whose keys give them places.
-- Expects: sized sizes bucket ready later soon largest
--
-- later has due times and IDs by turns, soon has IDs, and largest is the size of the largest
-- record. Places come before records: if something fails between the two, take drops an ID without
-- a record.

sized(sizes, largest)
if #later > 0 then
  redis.call('ZADD', bucket, unpack(later))
end
if #soon > 0 then
  redis.call('RPUSH', ready, unpack(soon))
end
