-- Notes up to which entry all is done, for the day on which somebody destroys the group.
--
-- From -> to: no message changes its state. KEYS: 1 leader, 2 floor. ARGV: token, id.
-- Returns: 'OK'; 'DEPOSED': the caller leads no more; nothing was changed. Keeps: I8. Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
redis.call('DEL', KEYS[2])  -- a full server lets a script go on that began with a write which needs no memory
redis.call('SET', KEYS[2], ARGV[2])
return 'OK'
