-- Begins a new incarnation of a consumer, once the lease of the one before it is over.
--
-- From -> to: no message changes its state; what the queue still holds belonged to the incarnation before: its messages
--             are in the ticket records, and the leader re-routes them.
-- KEYS: 1 consumers, 2 the new lease, 3 the lease of the registered incarnation, 4 the queue, 5 outcomes, 6 layout of
--       the whole stream (`bridge.routing.keys.layout_key`).
-- ARGV: consumer, incarnation, lease (ms), registration, registration that the caller found ('' = none), the generation
--       of the lane's partition.
-- Returns: {'OK'}; {'HELD', ms left}: the other incarnation's lease holds: wait it out;
--          {'CHANGED'}: the name was registered again in the meantime: the caller looks again;
--          {'LAYOUT'}: the stream was retired, or has left this partition: nobody serves the lane any more.
-- Keeps: I5: two incarnations of one name never hold leases together. I9: what `retire.lua` has deleted stays deleted
--        when a consumer comes that had no lease at that moment. Bound: O(1) + the old queue.

-- shared: is_left

if is_left(KEYS[6], ARGV[6]) then
  return {'LAYOUT'}
end
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[5] then
  return {'CHANGED'}
end
if ARGV[5] ~= '' and redis.call('EXISTS', KEYS[3]) == 1 then
  return {'HELD', redis.call('PTTL', KEYS[3])}
end
-- DEL first: a full server accepts all writes of a script if the first needs no memory.
redis.call('DEL', KEYS[4])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[3])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[4])
redis.call('XADD', KEYS[5], '*', 'i', ARGV[2], 'joined', ARGV[1])
return {'OK'}
