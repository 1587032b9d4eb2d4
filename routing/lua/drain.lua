-- Notes an operator's order that a consumer takes nothing new, or lifts it.
--
-- From -> to: no message changes its state.
-- KEYS: 1 leader, 2 drains. ARGV: token, consumer, order (JSON; '' lifts it).
-- Returns: 'OK'; 'DEPOSED': the caller leads no more; nothing was changed. Keeps: I8. Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
redis.call('HDEL', KEYS[2], ARGV[2])  -- also before HSET: a full server lets a script go on that began with this
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
end
return 'OK'
