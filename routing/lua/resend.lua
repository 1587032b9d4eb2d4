-- Sends a run that seems lost to its consumer once more, as it is: with the fences that its record has.
--
-- From -> to: IN_FLIGHT -> IN_FLIGHT.
-- KEYS: 1 leader, 2 tickets, 3 the queue of the consumer. ARGV: token, ticket, record as the caller knows it, message.
-- Returns: 'OK'; 'DEPOSED': another master leads; 'CONFLICT': the record is another one. Only 'OK' sent anything.
-- Keeps: I2, I4, I8: no new fence is given while a life that may still run the old one holds its lease. A worker that
--        has the run already refuses the second copy, and one that forgot it gives it back.
-- Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
if redis.call('HGET', KEYS[2], ARGV[2]) ~= ARGV[3] then
  return 'CONFLICT'
end
redis.call('HDEL', KEYS[2], '')  -- a full server accepts all writes of a script if the first needs no memory
redis.call('LPUSH', KEYS[3], ARGV[4])
return 'OK'
