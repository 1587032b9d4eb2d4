-- Removes the registration, the queue and the group name of a lost consumer.
--
-- From -> to: no message changes its state; a consumer with pending entries keeps its name in the group.
-- KEYS: 1 leader, 2 consumers, 3 stream, 4 the lease of the incarnation, 5 its queue.
-- ARGV: token, group, consumer, the registration as the caller read it.
-- Returns: 'OK'; 'DEPOSED'; 'ALIVE': the lease holds; 'CHANGED': the name was registered again.
-- Keeps: I8, I9.
-- Bound: O(1): it reads one pending entry of the consumer.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
if redis.call('EXISTS', KEYS[4]) == 1 then
  return 'ALIVE'
end
local registered = redis.call('HGET', KEYS[2], ARGV[3])
if registered and registered ~= ARGV[4] then
  return 'CHANGED'
end
redis.call('HDEL', KEYS[2], ARGV[3])
redis.call('DEL', KEYS[5])
if #redis.call('XPENDING', KEYS[3], ARGV[2], '-', '+', 1, ARGV[3]) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', KEYS[3], ARGV[2], ARGV[3])
end
return 'OK'
