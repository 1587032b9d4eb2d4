-- Removes a master that stops from the set of live masters, so that the others need not wait until its time ends.
--
-- From -> to: no message changes its state.
-- KEYS: 1 masters, 2 what each of them stands for. ARGV: holder.
-- Returns: 'OK'.
-- Keeps: I8: no lead depends on this set. Bound: O(1).

redis.call('ZREM', KEYS[1], ARGV[1])
if redis.call('HDEL', KEYS[2], ARGV[1]) == 1 then
  local time = redis.call('TIME')
  redis.call('HSET', KEYS[2], '', string.format('%.0f', time[1] * 1000000 + time[2]))
end
return 'OK'
