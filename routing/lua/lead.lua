-- Makes a master the leader of the lane, unless another one leads.
--
-- From -> to: no master leads -> this master leads, in a new term.
-- KEYS: 1 leader, 2 term, 3 layout of the whole stream (`bridge.routing.keys.layout_key`).
-- ARGV: holder, lease of the leader (ms), the generation of the lane's partition.
-- Returns: {'ELECTED', token}: lead until the lease ends or is extended; {'FOLLOW', token of the leader, its ms left};
--          {'LAYOUT'}: nobody leads, and nobody shall: the stream was retired, or has left this partition.
-- Keeps: I8: a term is given out once. I5a: a lead lasts at most one leader lease after its renewal, even when the
--        server's clock was set, or somebody took the end of its key away (PERSIST, RESTORE). I9: a master that did not
--        see the partition go creates nothing there. Bound: O(1).

-- shared: is_left

local current = redis.call('GET', KEYS[1])
if current then
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 or left > tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    left = tonumber(ARGV[2])
  end
  return {'FOLLOW', current, left}
end
if is_left(KEYS[3], ARGV[3]) then
  return {'LAYOUT'}
end
-- On a full server only scripts that begin with a deletion may write. A master must lead, because only it frees memory.
redis.call('DEL', KEYS[1])
local token = string.format('%.0f', redis.call('INCR', KEYS[2])) .. ' ' .. ARGV[1]
redis.call('SET', KEYS[1], token, 'PX', ARGV[2])
return {'ELECTED', token}
