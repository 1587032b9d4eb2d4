-- Makes entries pending under a name, whether they were pending under another name or not at all.
--
-- From -> to: pending under an unknown name, or acknowledged by hand -> WAITING | IN_FLIGHT, as the records say.
-- KEYS: 1 leader, 2 stream.
-- ARGV: token, group, consumer, ids (at most 1,000).
-- Returns: {'OK', number of ids that are pending now}: if fewer than asked for, the others are deleted;
--          {'DEPOSED'}: the caller does not lead any more; {'NOGROUP'}: the group is gone: the caller reads the lane
--          again.
-- Keeps: I1, I8. Bound: O(ids).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end
local arguments = {'XCLAIM', KEYS[2], ARGV[2], ARGV[3], 0}
for i = 4, #ARGV do
  arguments[#arguments + 1] = ARGV[i]
end
arguments[#arguments + 1] = 'FORCE'
arguments[#arguments + 1] = 'JUSTID'
-- shared: is_gone

local claimed = redis.pcall(unpack(arguments))
if claimed.err then
  return is_gone(claimed.err) and {'NOGROUP'} or claimed
end
return {'OK', #claimed}
