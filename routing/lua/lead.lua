-- Makes a master the leader of the lane, unless another one leads.
--
-- From -> to: no master leads -> this master leads, in a new term.
-- KEYS: 1 leader, 2 term.
-- ARGV: holder, lease of the leader (ms).
-- Returns: {'ELECTED', token}: lead until the lease ends or is extended; {'FOLLOW', token of the leader, its ms left}.
-- Keeps: I8: a term is given out once. I5a: a lead lasts at most one leader lease after its renewal, even when the
--        server's clock was set, or somebody took the end of its key away (PERSIST, RESTORE). Bound: O(1).

local current = redis.call('GET', KEYS[1])
if current then
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 or left > tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    left = tonumber(ARGV[2])
  end
  return {'FOLLOW', current, left}
end
-- On a full server only scripts that begin with a deletion may write. A master must lead, because only it frees memory.
redis.call('DEL', KEYS[1])
local token = string.format('%.0f', redis.call('INCR', KEYS[2])) .. ' ' .. ARGV[1]
redis.call('SET', KEYS[1], token, 'PX', ARGV[2])
return {'ELECTED', token}
