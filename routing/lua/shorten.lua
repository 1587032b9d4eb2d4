-- Cuts a lease to its full length, when the server's clock was set back after its renewal, or its key has no end.
--
-- From -> to: no message changes its state. KEYS: 1 leader, 2 the lease. ARGV: token, lease (ms).
-- Returns: 'OK'; 'DEPOSED': the caller does not lead any more; nothing was changed.
-- Keeps: I5a: its holder trusts it for that time at most; I8. Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
local left = redis.call('PTTL', KEYS[2])
if left == -1 or left > tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return 'OK'
