-- Renews the leader lease. Never revives one that ended.
--
-- From -> to: leads -> leads. KEYS: 1 leader. ARGV: token, lease of the leader (ms).
-- Returns: 'OK'; 'DEPOSED': the lease ended or another master leads.
-- Keeps: I8. Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 'OK'
