-- Notes an operator's order that a consumer takes nothing new, or lifts it.
--
-- From -> to: no message changes its state.
-- KEYS: 1 leader, 2 drains. ARGV: token, consumer, order (JSON; '' lifts it).
-- Returns: 'OK'; 'DEPOSED': the caller does not lead any more; nothing was changed. Keeps: I8. Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
-- Also before HSET: a full server accepts all writes of a script if the first needs no memory.
redis.call('HDEL', KEYS[2], ARGV[2])
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
end
return 'OK'
