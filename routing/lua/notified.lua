-- Notes up to which dead letter the lane has told the receiver of its notices, and how the last request went.
--
-- From -> to: no message changes its state.
-- KEYS: 1 leader, 2 notices (`bridge.routing.keys.LaneKeys.notices`), 3 dead letters.
-- ARGV: token, last letter that was told ('' = none in this call), letters that were told, requests that failed, error
--       of the last request ('' = it did not fail), time (Unix ms).
-- Returns: {'OK', last letter that was told}: where nothing was noted before, the newest letter that there is;
--          {'DEPOSED'}: the caller does not lead any more; nothing was changed.
-- Keeps: I8, I9 (a fixed set of fields). Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end
-- A full server refuses commands that need memory until the script has written. This deletes nothing, and is a write.
redis.call('HDEL', KEYS[2], '')
local told = redis.call('HGET', KEYS[2], 'told_to')
if not told then
  local newest = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)
  told = newest[1] and newest[1][1] or '0-0'
  redis.call('HSET', KEYS[2], 'told_to', told)
end
if ARGV[2] ~= '' then
  told = ARGV[2]
  redis.call('HSET', KEYS[2], 'told_to', told, 'told_ms', ARGV[6])
  redis.call('HINCRBY', KEYS[2], 'told', ARGV[3])
  redis.call('HDEL', KEYS[2], 'error', 'error_ms')
end
if ARGV[4] ~= '0' then
  redis.call('HINCRBY', KEYS[2], 'failed', ARGV[4])
  redis.call('HSET', KEYS[2], 'error', ARGV[5])
  redis.call('HSETNX', KEYS[2], 'error_ms', ARGV[6])
end
return {'OK', told}
