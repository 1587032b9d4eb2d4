-- Returns how much time each lease has left.
--
-- From -> to: no message changes its state; only reads.
-- KEYS: 1.. leases.
-- ARGV: none.
-- Returns: for each lease the ms that it has left; -2 = it is gone, -1 = its key has no end.
-- Keeps: I5. Bound: O(leases), which the caller keeps to 1,000.

local left = {}
for i = 1, #KEYS do
  left[i] = redis.call('PTTL', KEYS[i])
end
return left
