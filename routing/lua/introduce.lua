-- Says which version and settings the leader of the lane has, for members that have others.
--
-- From -> to: no message changes its state. KEYS: 1 leader, 2 about. ARGV: token, JSON.
-- Returns: 'OK'; 'DEPOSED': the caller leads no more; nothing was changed. Keeps: I8. Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
redis.call('HDEL', KEYS[2], '')  -- a full server lets a script go on that began with a write which needs no memory
redis.call('HSET', KEYS[2], 'master', ARGV[2])
return 'OK'
