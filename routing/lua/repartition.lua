-- Gives a stream a new layout, and makes the streams of its partitions with the groups that the old ones have.
--
-- From -> to: no message changes its state; messages that are pushed from now on go to the new partitions.
-- KEYS: 1 layout (`bridge.routing.keys.layout_key`), 2.. the streams of the old partitions, then of the new ones; last
--       its copy (`bridge.routing.keys.layout_copy_key`).
-- ARGV: layout that the caller knows ('' = none is stored), new layout, number of old partitions.
-- Returns: {'OK'}; {'LAYOUT', layout}: another layout is stored; {'HELD', key}: a new partition has the name of a key
--          that is no stream, or of a stream that has groups: somebody uses it. Only 'OK' changed anything.
-- Keeps: promise 1 across layouts: all producers change in one moment. Promise 2: each group has the new partitions
--        from their first entry on, so a group that no master of the caller's app knows misses nothing.
-- A full server refuses the MSET and so all of it.
-- Bound: O(partitions * groups).

local layout = redis.call('GET', KEYS[1]) or ''
if layout ~= ARGV[1] then
  return {'LAYOUT', layout}
end
local old = tonumber(ARGV[3])
local names, known = {}, {}
for i = 2, old + 1 do
  local groups = redis.pcall('XINFO', 'GROUPS', KEYS[i])
  for _, flat in ipairs(groups.err and {} or groups) do
    for f = 1, #flat, 2 do
      local name = flat[f + 1]
      if flat[f] == 'name' and not known[name] then
        known[name] = true
        names[#names + 1] = name
      end
    end
  end
end
for i = old + 2, #KEYS - 1 do
  local key = KEYS[i]
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and (kind ~= 'stream' or #redis.call('XINFO', 'GROUPS', key) > 0) then
    return {'HELD', KEYS[i]}
  end
end
redis.call('MSET', KEYS[1], ARGV[2], KEYS[#KEYS], ARGV[2])
for i = old + 2, #KEYS - 1 do
  for _, name in ipairs(names) do
    redis.pcall('XGROUP', 'CREATE', KEYS[i], name, '0', 'MKSTREAM')
  end
end
return {'OK'}
