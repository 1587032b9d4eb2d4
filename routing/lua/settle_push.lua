-- Notes that an epoch of a write is committed: deletes the marks of older epochs, and refuses their late chunks.
--
-- From -> to: no message changes its state.
-- KEYS: 1 guard of the write (`bridge.routing.keys.push_guard`).
-- ARGV: epoch, partitions it had (kept only if no chunk has set it), its summary (JSON), life of the
--       guard from now on (s).
-- Returns: 'OK'; 'LATE': a later epoch is committed already: nothing was changed.
-- Keeps: I9. Bound: O(marks of older epochs).

local floor = redis.call('HGET', KEYS[1], 'floor')
if floor and tonumber(ARGV[1]) < tonumber(floor) then
  return 'LATE'
end
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  local epoch = string.match(field, '^(%d+)/')
  if epoch and tonumber(epoch) < tonumber(ARGV[1]) then
    redis.call('HDEL', KEYS[1], field)
  end
end
redis.call('HDEL', KEYS[1], 'told')  -- a full server accepts all writes of a script if the first needs no memory
redis.call('HSET', KEYS[1], 'floor', ARGV[1], 'told', ARGV[3])
-- Chunks set the number of partitions. The number of tasks may differ. Another attempt sets the same number.
if not redis.call('HGET', KEYS[1], ARGV[1] .. '/of') then
  redis.call('HSET', KEYS[1], ARGV[1] .. '/of', ARGV[2])
end
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 'OK'
