-- Notes the format of the lane, and the version and the settings of its leader. Other members compare them.
--
-- From -> to: no message changes its state. KEYS: 1 leader, 2 about, 3 history, 4 agreed.
-- ARGV: token, JSON, format, whether the history is kept (1 | 0).
-- Returns: 'OK'; 'DEPOSED': the caller does not lead any more; nothing was changed.
-- Keeps: I1 (leaders of other lanes see that the group is a lane before it reads), I8.
-- Bound: O(1), and the length of an old history.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
redis.call('HDEL', KEYS[2], '')  -- a full server accepts all writes of a script if the first needs no memory
if ARGV[4] == '0' then
  redis.call('DEL', KEYS[3])  -- with a gap, an old one would look as if messages were lost
end
redis.call('HSET', KEYS[2], 'master', ARGV[2], 'format', ARGV[3])
redis.call('SETNX', KEYS[4], 0)
return 'OK'
