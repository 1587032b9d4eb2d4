-- Ends the lease of an incarnation that shuts down, so that its tickets move at once.
--
-- From -> to: no message changes its state; the leader reads the notice and re-routes what is left in flight.
-- KEYS: 1 the lease, 2 held, 3 outcomes. ARGV: consumer, incarnation.
-- Returns: 'OK'; 'LATE': the lease was over already: nothing was written.
-- Keeps: I5. I9: the lane may be deleted when no lease is left. Bound: O(1).

redis.call('DEL', KEYS[2])
if redis.call('DEL', KEYS[1]) == 0 then
  return 'LATE'
end
redis.call('XADD', KEYS[3], '*', 'i', ARGV[2], 'gone', ARGV[1])
return 'OK'
