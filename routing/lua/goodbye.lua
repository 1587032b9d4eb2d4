-- Ends the lease of an incarnation that shuts down, so that its tickets move at once.
--
-- From -> to: no message changes its state; the leader reads the notice and re-routes what is left in flight.
-- KEYS: 1 the lease, 2 held, 3 outcomes. ARGV: consumer, incarnation.
-- Returns: 'OK'. Bound: O(1). Keeps: I5.

redis.call('DEL', KEYS[1], KEYS[2])
redis.call('XADD', KEYS[3], '*', 'i', ARGV[2], 'gone', ARGV[1])
return 'OK'
