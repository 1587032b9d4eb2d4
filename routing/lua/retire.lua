-- Deletes a stream with all keys of its lanes, when all its groups are done with it and nobody uses it. Or only looks.
--
-- From -> to: DONE -> gone. KEYS: 1 stream, 2.. the keys that must not be there, then the keys to delete.
-- ARGV: number of keys that must not be there, 'delete' or 'look', names of the groups that the caller knows of ...
-- Returns: {'OK', number of keys that were deleted, or would be}; {'HELD', key}: this key is there; {'UNREAD', group}: the group has
--          not read the stream to its end ('': there is no group, and the stream has entries); {'UNDONE', group}: it has
--          pending entries; {'CHANGED', group}: the caller does not know this group, and reads the lanes again. Only
--          'OK' changed anything.
-- Keeps: I1, I9. Bound: O(keys, groups); what the keys hold is freed in the background.

local known = {}
for i = 3, #ARGV do
  known[ARGV[i]] = true
end
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if last and (groups.err or #groups == 0) then
  return {'UNREAD', ''}
end
for _, flat in ipairs(groups.err and {} or groups) do
  local info = {}
  for i = 1, #flat, 2 do
    info[flat[i]] = flat[i + 1]
  end
  if not known[info['name']] then
    return {'CHANGED', info['name']}
  end
  if info['pending'] > 0 then
    return {'UNDONE', info['name']}
  end
  local read_to = info['last-delivered-id']
  if last and read_to ~= last[1] and #redis.call('XRANGE', KEYS[1], '(' .. read_to, '+', 'COUNT', 1) > 0 then
    return {'UNREAD', info['name']}
  end
end
local free = tonumber(ARGV[1])
for i = 2, free + 1 do
  -- An empty stream: all dead letters were replayed or dropped.
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and (kind ~= 'stream' or redis.call('XLEN', KEYS[i]) > 0) then
    return {'HELD', KEYS[i]}
  end
end
local deleted = 0
for i = 1, #KEYS do
  if i == 1 or i > free + 1 then
    if ARGV[2] == 'delete' then
      deleted = deleted + redis.call('UNLINK', KEYS[i])
    else
      deleted = deleted + redis.call('EXISTS', KEYS[i])
    end
  end
end
return {'OK', deleted}
