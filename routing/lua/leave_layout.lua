-- Lets a stream's new partitions follow the old ones no more, when all groups are done with the old ones.
--
-- From -> to: no message changes its state.
-- KEYS: 1 layout (`bridge.routing.keys.layout_key`), 2.. the streams of the old partitions, then of the new ones; then
--       for each group: of each old partition its fence, tickets and dead letters, and of each new one its fence; last
--       the copy of the layout (`bridge.routing.keys.layout_copy_key`).
-- ARGV: layout that the caller knows, layout without the old partitions, number of old partitions, of new ones, names
--       of the groups ...
-- Returns: {'OK'}; {'LAYOUT', layout}: another layout is stored; {'CHANGED', group}: the caller does not know this
--          group; {'UNREAD', stream, group}: the group has not read this old partition to its end; {'UNDONE', stream,
--          group}: it has pending entries there; {'HELD', key}: it has tickets, or dead letters, there. Only 'OK'
--          changed anything.
-- Keeps: promise 1: what is dispatched from a new partition from now on has nothing before it in an old one. I4: fences
--        of new partitions are above those of the old ones, also when the server's clock was set back. Promise 2: a
--        group that came to an old partition after the repartition began has the new ones, too.
-- Bound: O(partitions * groups).

-- shared: not_done_with

local layout = redis.call('GET', KEYS[1]) or ''
if layout ~= ARGV[1] then
  return {'LAYOUT', layout}
end
local old, new = tonumber(ARGV[3]), tonumber(ARGV[4])
local first_keys = old + new + 2
local known, there = {}, {}
for i = 5, #ARGV do
  known[ARGV[i]] = true
end
for i = 2, old + 1 do
  local code, group = not_done_with(KEYS[i], known)
  if code == 'CHANGED' then
    return {code, group}
  elseif code then
    return {code, KEYS[i], group}
  end
  local groups = redis.pcall('XINFO', 'GROUPS', KEYS[i])
  for _, flat in ipairs(groups.err and {} or groups) do
    there[flat[2]] = true
  end
end
local each = 3 * old + new
for g = 0, #ARGV - 5 do
  for o = 0, old - 1 do
    local place = first_keys + g * each + 3 * o
    for i = place + 1, place + 2 do
      if holds(KEYS[i]) then
        return {'HELD', KEYS[i]}
      end
    end
  end
end
redis.call('DEL', KEYS[1])  -- a full server accepts all writes of a script if the first needs no memory
redis.call('MSET', KEYS[1], ARGV[2], KEYS[#KEYS], ARGV[2])
for g = 0, #ARGV - 5 do
  for i = old + 2, there[ARGV[5 + g]] and old + new + 1 or 0 do
    redis.pcall('XGROUP', 'CREATE', KEYS[i], ARGV[5 + g], '0', 'MKSTREAM')
  end
  local first = first_keys + g * each
  local highest = 0
  for i = first, first + 3 * old - 1, 3 do
    highest = math.max(highest, tonumber(redis.call('GET', KEYS[i]) or '0'))
  end
  for i = first + 3 * old, first + each - 1 do
    if highest > tonumber(redis.call('GET', KEYS[i]) or '0') then
      redis.call('SET', KEYS[i], string.format('%.0f', highest))
    end
  end
end
return {'OK'}
