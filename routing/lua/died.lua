-- Ends the lease of an incarnation whose worker died, and writes the death notice: what it was running.
--
-- From -> to: no message changes its state; the leader reads the notice, and takes back what was in flight there.
-- KEYS: 1 the lease, 2 held, 3 outcomes. ARGV: consumer, incarnation, fences that ran (JSON array),
--       whether it was told to end at once (1 or 0), how many messages of other lanes ran.
-- Returns: 'OK'; 'LATE': the lease was over already: nothing was written.
-- Keeps: I5: the caller knows that nothing of the incarnation runs any more. Bound: O(1).

if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'LATE'
end
-- DEL first: a full server accepts all writes of a script if the first needs no memory.
redis.call('DEL', KEYS[1], KEYS[2])
local fields = {'i', ARGV[2], 'died', ARGV[1], 'ran', ARGV[3]}
if ARGV[4] == '1' then
  fields[7], fields[8] = 'asked', '1'
end
if ARGV[5] ~= '0' then
  fields[#fields + 1], fields[#fields + 2] = 'beside', ARGV[5]
end
redis.call('XADD', KEYS[3], '*', unpack(fields))
return 'OK'
