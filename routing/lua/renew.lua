-- Renews the leader leases of all lanes that a master leads. Never revives one that ended.
--
-- From -> to: leads -> leads, for each lane by itself. KEYS: leader of each lane.
-- ARGV: token and lease of the leader (ms) of each lane, in the order of the keys.
-- Returns: for each lane 'OK', or 'DEPOSED': the lease ended or another master leads.
-- Keeps: I8. Bound: O(lanes).

local codes = {}
for m = 1, #KEYS do
  -- A key of another type ends that lane's lead, and no other.
  if redis.pcall('GET', KEYS[m]) ~= ARGV[2 * m - 1] then
    codes[m] = 'DEPOSED'
  else
    redis.call('PEXPIRE', KEYS[m], ARGV[2 * m])
    codes[m] = 'OK'
  end
end
return codes
