-- Gives the leader a new term. Scripts that it sent in the old term and gave up change nothing after that.
--
-- From -> to: leads -> leads, in a new term. KEYS: 1 leader, 2 term.
-- ARGV: token, holder, lease of the leader (ms).
-- Returns: {'OK', token}; {'DEPOSED'}: it does not lead any more; nothing was changed.
-- Keeps: I8: a script whose reply was lost may still be on its way, or run late, when the leader has read the lane
--        again.
-- Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end
redis.call('DEL', KEYS[1])  -- a full server accepts all writes of a script if the first needs no memory
local token = string.format('%.0f', redis.call('INCR', KEYS[2])) .. ' ' .. ARGV[2]
redis.call('SET', KEYS[1], token, 'PX', ARGV[3])
return {'OK', token}
