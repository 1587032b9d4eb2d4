-- Ends the following of a stream's old partitions, when all their groups are done with them.
--
-- From -> to: no message changes its state.
-- KEYS: 1 layout (`bridge.routing.keys.layout_key`), 2.. the streams of the old partitions; then for each group: of each
--       old partition its fence, tickets and dead letters, and of each new one its fence; last the copy of the layout.
-- ARGV: layout that the caller knows, layout without the old partitions, number of old partitions, of new ones, names of
--       the groups ...
-- Returns: {'OK'}; {'LAYOUT', layout}: another layout is stored; {'CHANGED', group}: the caller does not know this group;
--          {'UNREAD', stream, group}: the group has not read this old partition to its end; {'UNDONE', stream, group}:
--          it has pending entries there; {'HELD', key}: it has tickets, or dead letters, there. Only 'OK' changed
--          anything.
-- Keeps: promise 1: what is dispatched from a new partition from now on has nothing before it in an old one. I4: fences
--        of new partitions are above those of the old ones, also when the server's clock was set back.
-- Bound: O(partitions * groups).

local layout = redis.call('GET', KEYS[1]) or ''
if layout ~= ARGV[1] then
  return {'LAYOUT', layout}
end
local old, new = tonumber(ARGV[3]), tonumber(ARGV[4])
local known = {}
for i = 5, #ARGV do
  known[ARGV[i]] = true
end
for i = 2, old + 1 do
  local groups = redis.pcall('XINFO', 'GROUPS', KEYS[i])
  local last = redis.call('XREVRANGE', KEYS[i], '+', '-', 'COUNT', 1)[1]
  if last and (groups.err or #groups == 0) then
    return {'UNREAD', KEYS[i], ''}
  end
  for _, flat in ipairs(groups.err and {} or groups) do
    local info = {}
    for f = 1, #flat, 2 do
      info[flat[f]] = flat[f + 1]
    end
    if not known[info['name']] then
      return {'CHANGED', info['name']}
    end
    if info['pending'] > 0 then
      return {'UNDONE', KEYS[i], info['name']}
    end
    local read_to = info['last-delivered-id']
    if last and read_to ~= last[1] and #redis.call('XRANGE', KEYS[i], '(' .. read_to, '+', 'COUNT', 1) > 0 then
      return {'UNREAD', KEYS[i], info['name']}
    end
  end
end
local each = 3 * old + new
for g = 0, #ARGV - 5 do
  for o = 0, old - 1 do
    local place = old + 2 + g * each + 3 * o
    for i = place + 1, place + 2 do
      -- An empty stream: all dead letters were replayed or dropped.
      local kind = redis.call('TYPE', KEYS[i]).ok
      if kind ~= 'none' and (kind ~= 'stream' or redis.call('XLEN', KEYS[i]) > 0) then
        return {'HELD', KEYS[i]}
      end
    end
  end
end
redis.call('DEL', KEYS[1])  -- a full server lets a script continue whose first write needs no memory
redis.call('SET', KEYS[1], ARGV[2])
-- The copy stands where the first layout had its first partition, as long as that is not there.
local last = #KEYS
local copy = redis.pcall('GET', KEYS[last])
if not copy or type(copy) == 'string' and copy:find('{"partitions":', 1, true) == 1 then
  redis.call('SET', KEYS[last], ARGV[2])
end
for g = 0, #ARGV - 5 do
  local first = old + 2 + g * each
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
