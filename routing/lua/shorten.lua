-- Cuts a lease to its full length, when the server's clock was set back since it was renewed.
--
-- From -> to: no message changes its state. KEYS: 1 leader, 2 the lease. ARGV: token, lease (ms).
-- Returns: 'OK'; 'DEPOSED': the caller leads no more; nothing was changed.
-- Keeps: I5a: who holds it trusts it for no longer than that; I8. Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
if redis.call('PTTL', KEYS[2]) > tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return 'OK'
