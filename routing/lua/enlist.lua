-- Begins an incarnation of an HTTP consumer in all lanes that it serves, once the leases of the one before are over.
--
-- From -> to: no message changes its state; what the queues still hold belonged to the incarnation before: its messages
--             are in the ticket records, and the leaders re-route them.
-- KEYS: the copies of the record of the incarnation; of each lane: consumers, the new lease, the lease of the
--       registered incarnation, the queue, outcomes, layout of the whole stream (`bridge.routing.keys.layout_key`).
-- ARGV: consumer, incarnation, record, lifetime of the record (ms), number of its copies; of each lane: lease (ms),
--       registration, registration that the caller found ('' = none), the generation of the lane's partition.
-- Returns: {'OK'}; {'HELD', ms left}: a lease of the other incarnation holds: wait it out; {'CHANGED'}: the name was
--          registered again in the meantime: the caller looks again; {'LAYOUT'}: the stream of a lane was retired, or
--          has left this partition. Only 'OK' changed anything.
-- Keeps: I5: two incarnations of one name never hold leases together. I9: as in `register.lua`.
-- Bound: O(lanes + the old queues).

-- shared: is_left

local copies = tonumber(ARGV[5])

local function of_lane(l)
  -- The place in KEYS before the keys of a lane, and in ARGV before its arguments.
  return copies + (l - 1) * 6, 5 + (l - 1) * 4
end

local lanes = (#KEYS - copies) / 6
for l = 1, lanes do
  local k, at = of_lane(l)
  if is_left(KEYS[k + 6], ARGV[at + 4]) then
    return {'LAYOUT'}
  end
  local found = ARGV[at + 3]
  if (redis.call('HGET', KEYS[k + 1], ARGV[1]) or '') ~= found then
    return {'CHANGED'}
  end
  if found ~= '' and redis.call('EXISTS', KEYS[k + 3]) == 1 then
    return {'HELD', redis.call('PTTL', KEYS[k + 3])}
  end
end
for l = 1, lanes do
  local k, at = of_lane(l)
  -- DEL first: a full server accepts all writes of a script if the first needs no memory.
  redis.call('DEL', KEYS[k + 4])
  redis.call('SET', KEYS[k + 2], ARGV[1], 'PX', ARGV[at + 1])
  redis.call('HSET', KEYS[k + 1], ARGV[1], ARGV[at + 2])
  redis.call('XADD', KEYS[k + 5], '*', 'i', ARGV[2], 'joined', ARGV[1])
end
for k = 1, copies do
  redis.call('SET', KEYS[k], ARGV[3], 'PX', ARGV[4])
end
return {'OK'}
