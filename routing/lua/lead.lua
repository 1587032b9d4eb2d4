-- Makes a master the leader of the lane, unless another one leads.
--
-- From -> to: nobody leads -> this master leads, in a new term.
-- KEYS: 1 leader, 2 term.
-- ARGV: holder, lease of the leader (ms).
-- Returns: {'ELECTED', token}: lead until the lease ends or is extended; {'FOLLOW', token of the leader, its ms left}.
-- Keeps: I8: a term is given out once. I5a: a lead is no longer than its lease, whatever was done to the server's clock
--        since it was renewed. Bound: O(1).

local current = redis.call('GET', KEYS[1])
if current then
  local left = redis.call('PTTL', KEYS[1])
  if left > tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    left = tonumber(ARGV[2])
  end
  return {'FOLLOW', current, left}
end
-- On a full server only scripts that begin with a deletion may write; somebody must lead, or room never comes.
redis.call('DEL', KEYS[1])
local token = string.format('%.0f', redis.call('INCR', KEYS[2])) .. ' ' .. ARGV[1]
redis.call('SET', KEYS[1], token, 'PX', ARGV[2])
return {'ELECTED', token}
