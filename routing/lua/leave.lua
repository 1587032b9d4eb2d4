-- Ends the leases of an HTTP consumer that leaves, so that its tickets move at once.
--
-- From -> to: no message changes its state; the leaders read the notices and re-route what is left in flight.
-- KEYS: 1.. of each lane: lease, held, messages given, messages acknowledged, outcomes, drains.
-- ARGV: consumer, incarnation, '1': an order that drains the consumer ends, too ('0': it stays).
-- Returns: 'OK'; 'LATE': all leases were over: nothing was changed. Keeps: I5: the caller runs nothing any more.
-- Bound: O(lanes + unacknowledged messages).

local held = false
for k = 0, #KEYS - 1, 6 do
  if redis.call('EXISTS', KEYS[k + 1]) == 1 then
    held = true
    redis.call('DEL', KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4])
    redis.call('XADD', KEYS[k + 5], '*', 'i', ARGV[2], 'gone', ARGV[1])
  end
end
for k = 0, #KEYS - 1, 6 do
  if held and ARGV[3] == '1' then
    redis.call('HDEL', KEYS[k + 6], ARGV[1])
  end
end
return held and 'OK' or 'LATE'
