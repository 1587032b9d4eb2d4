-- Notes for which tasks messages wait since nobody can run them, and which tasks somebody could run lately.
--
-- From -> to: no message changes its state; who looks at the lane, and the next leader, learn of it.
-- KEYS: 1 leader, 2 known, 3 unserved.
-- ARGV: token; then counted lists, each preceded by its length: known (task, Unix s), forgotten (task), and all for
--       which messages wait (task, JSON).
-- Returns: 'OK'; 'DEPOSED': the caller leads no more; nothing was changed.
-- Keeps: I8, I9. Bound: O(what is noted).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
redis.call('DEL', KEYS[3])  -- a full server lets a script go on that began with a write which needs no memory
local at = 2
for _ = 1, tonumber(ARGV[at]) do
  redis.call('HSET', KEYS[2], ARGV[at + 1], ARGV[at + 2])
  at = at + 2
end
at = at + 1
for _ = 1, tonumber(ARGV[at]) do
  redis.call('HDEL', KEYS[2], ARGV[at + 1])
  at = at + 1
end
at = at + 1
for _ = 1, tonumber(ARGV[at]) do
  redis.call('HSET', KEYS[3], ARGV[at + 1], ARGV[at + 2])
  at = at + 2
end
return 'OK'
