-- Notes the format of the lane, and the version and the settings of its leader. Other members compare them.
--
-- From -> to: no message changes its state. KEYS: 1 leader, 2 about. ARGV: token, JSON, format.
-- Returns: 'OK'; 'DEPOSED': the caller does not lead any more; nothing was changed. Keeps: I8. Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
redis.call('HDEL', KEYS[2], '')  -- a full server lets a script continue whose first write needs no memory
redis.call('HSET', KEYS[2], 'master', ARGV[2], 'format', ARGV[3])
return 'OK'
