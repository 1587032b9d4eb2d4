-- Notes the floor: all entries up to it are done or dead. It is needed when the group was destroyed.
--
-- From -> to: no message changes its state. KEYS: 1 leader, 2 floor. ARGV: token, id.
-- Returns: 'OK'; 'DEPOSED': the caller does not lead any more; nothing was changed. Keeps: I8. Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
redis.call('DEL', KEYS[2])  -- a full server accepts all writes of a script if the first needs no memory
redis.call('SET', KEYS[2], ARGV[2])
return 'OK'
