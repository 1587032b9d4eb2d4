-- Claims pending entries that no ticket record knows back to the master's name.
--
-- From -> to: pending under a stranger's name -> WAITING.
-- KEYS: 1 leader, 2 stream.
-- ARGV: token, group, master, ids.
-- Returns: {'OK', entries claimed ([id, [field, value ...]] ...)}; {'DEPOSED'}: the caller leads no more.
-- Keeps: I1, I8. Bound: O(ids).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end
return {'OK', redis.call('XCLAIM', KEYS[2], ARGV[2], ARGV[3], 0, unpack(ARGV, 4))}
