-- Notes that an epoch of a write is committed: forgets the marks of older ones, and refuses their stragglers.
--
-- From -> to: no message changes its state.
-- KEYS: 1 guard of the write (`bridge.routing.keys.push_guard`).
-- ARGV: epoch, partitions it had (kept only where no chunk has said how many), what it came to (JSON), life of the
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
redis.call('HDEL', KEYS[1], 'told')  -- a full server lets a script go on that began with such a write
redis.call('HSET', KEYS[1], 'floor', ARGV[1], 'told', ARGV[3])
-- Chunks say what the rows were partitioned into; tasks may be fewer or more, and another attempt says the same again.
if not redis.call('HGET', KEYS[1], ARGV[1] .. '/of') then
  redis.call('HSET', KEYS[1], ARGV[1] .. '/of', ARGV[2])
end
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 'OK'
