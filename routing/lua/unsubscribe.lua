-- Deletes a lane that nobody serves: its group and all its keys. The stream stays.
--
-- From -> to: no message has a state in this lane any more.
-- KEYS: 1 leader, 2 stream, 3 consumers, 4.. the leases of the consumers in ARGV, in their order, then the keys to
--       delete.
-- ARGV: group, number of consumers that the caller knows of, their names and registrations ...
-- Returns: {'OK', number of keys that were deleted, and the group is one of them}; {'HELD', token}: a master leads the
--          lane; {'ALIVE', name}: the lease of this consumer holds; {'CHANGED'}: other consumers are registered than
--          the caller thought: it reads them again. Only 'OK' changed anything.
-- Keeps: I9. Bound: O(keys, consumers in the group); what the keys hold is freed in the background.

local token = redis.call('GET', KEYS[1])
if token then
  return {'HELD', token}
end
local consumers = tonumber(ARGV[2])
if redis.call('HLEN', KEYS[3]) ~= consumers then
  return {'CHANGED'}
end
for i = 1, consumers do
  local name = ARGV[1 + 2 * i]
  if redis.call('HGET', KEYS[3], name) ~= ARGV[2 + 2 * i] then
    return {'CHANGED'}
  end
  if redis.call('EXISTS', KEYS[3 + i]) == 1 then
    return {'ALIVE', name}
  end
end
local deleted = 0
-- First, since Redis 6.2 refuses XGROUP as the first write of a script when the server is full.
for i = 4 + consumers, #KEYS do
  deleted = deleted + redis.call('UNLINK', KEYS[i])
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  deleted = deleted + redis.call('XGROUP', 'DESTROY', KEYS[2], ARGV[1])
end
return {'OK', deleted}
