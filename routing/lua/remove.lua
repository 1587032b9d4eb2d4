-- Removes done entries from the stream.
--
-- From -> to: no message changes its state: what goes is DONE, in this lane and in every other one of the stream.
-- KEYS: 1 leader, 2 stream.
-- ARGV: token, group, number of other groups that the caller knows of, their names ..., ids ... that are done in the
--       caller's group, and delivered to the others.
-- Returns: {'OK', entries that were removed}: those that another group has pending stay; {'DEPOSED'}: another master
--          leads: nothing was removed; {'CHANGED'}: the stream has other groups than the caller thought, or not the
--          caller's: it may be another stream by now. Nothing was removed; the caller asks again which entries they
--          are all done with.
-- Keeps: I1 (what some group has not read, or has pending, stays), I8. Bound: O(ids), times other groups.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end

local known, others = {}, tonumber(ARGV[3])
for i = 4, 3 + others do
  known[ARGV[i]] = true
end
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[2])
if groups.err then
  return {'CHANGED'}  -- there is no stream
end
local found, own = 0, false
for _, info in ipairs(groups) do
  for i = 1, #info, 2 do
    if info[i] == 'name' and info[i + 1] == ARGV[2] then
      own = true
    elseif info[i] == 'name' then
      if not known[info[i + 1]] then
        return {'CHANGED'}
      end
      found = found + 1
    end
  end
end
if found ~= others or not own then
  return {'CHANGED'}
end

local ids = {}
for i = 4 + others, #ARGV do
  local needed = false
  for name in pairs(known) do
    needed = needed or #redis.call('XPENDING', KEYS[2], name, ARGV[i], ARGV[i], 1) > 0
  end
  if not needed then
    ids[#ids + 1] = ARGV[i]
  end
end
local removed = 0
for from = 1, #ids, 1000 do  -- below Lua's limit on unpacked values
  removed = removed + redis.call('XDEL', KEYS[2], unpack(ids, from, math.min(from + 999, #ids)))
end
return {'OK', removed}
