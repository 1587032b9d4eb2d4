-- Notes the tasks of waiting messages that no consumer can run, and the tasks that a consumer could run lately.
--
-- From -> to: no message changes its state; `bridge status` and the next leader read the notes.
-- KEYS: 1 leader, 2 known, 3 unserved.
-- ARGV: token; then three lists, each after its length: known (task, Unix s), forgotten (task), waiting (task, JSON).
-- Returns: 'OK'; 'DEPOSED': the caller does not lead any more; nothing was changed.
-- Keeps: I8, I9. Bound: O(what is noted).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
redis.call('DEL', KEYS[3])  -- a full server accepts all writes of a script if the first needs no memory
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
