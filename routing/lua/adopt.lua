-- Makes entries pending under a name, whoever had them, or nobody.
--
-- From -> to: pending under a stranger's name, or by hand under nobody's -> WAITING | IN_FLIGHT, as the records say.
-- KEYS: 1 leader, 2 stream.
-- ARGV: token, group, consumer, ids (at most 1,000).
-- Returns: {'OK', number of ids that are pending now}: fewer than asked for: those entries are deleted;
--          {'DEPOSED'}: the caller leads no more; {'NOGROUP'}: the group is gone: it reads the lane anew.
-- Keeps: I1, I8. Bound: O(ids).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end
local words = {'XCLAIM', KEYS[2], ARGV[2], ARGV[3], 0}
for i = 4, #ARGV do
  words[#words + 1] = ARGV[i]
end
words[#words + 1] = 'FORCE'
words[#words + 1] = 'JUSTID'
local claimed = redis.pcall(unpack(words))
if claimed.err then
  return {'NOGROUP'}
end
return {'OK', #claimed}
