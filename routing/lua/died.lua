-- Ends the lease of an incarnation whose worker died, and tells what it was running.
--
-- From -> to: no message changes its state; the leader hears of it, and takes back what was in flight there.
-- KEYS: 1 the lease, 2 held, 3 outcomes. ARGV: consumer, incarnation, fences that ran (JSON array),
--       whether it was told to end at once (1 or 0).
-- Returns: 'OK'; 'LATE': the lease is over: whoever had to know does, and nothing was written.
-- Keeps: I5: the caller knows that nothing of the incarnation runs any more. Bound: O(1).

if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'LATE'
end
-- DEL first: a full server lets a script go on that began with a write which needs no memory.
redis.call('DEL', KEYS[1], KEYS[2])
if ARGV[4] == '1' then
  redis.call('XADD', KEYS[3], '*', 'i', ARGV[2], 'died', ARGV[1], 'ran', ARGV[3], 'asked', '1')
else
  redis.call('XADD', KEYS[3], '*', 'i', ARGV[2], 'died', ARGV[1], 'ran', ARGV[3])
end
return 'OK'
