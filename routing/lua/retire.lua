-- Deletes a stream with all keys of its lanes, when all its groups are done with it and nobody uses it. Or only looks.
--
-- From -> to: DONE -> gone. KEYS: 1 stream, 2.. the keys that must not be there, then the keys to delete.
-- ARGV: number of keys that must not be there, 'delete' or 'look', names of the groups that the caller knows of ...
-- Returns: {'OK', number of keys that were deleted, or would be}; {'HELD', key}: this key is there; {'UNREAD', group}:
--          the group has not read the stream to its end ('': there is no group, and the stream has entries); {'UNDONE',
--          group}: it has pending entries; {'CHANGED', group}: the caller does not know this group, and reads the lanes
--          again. Only 'OK' changed anything.
-- Keeps: I1, I9. Bound: O(keys, groups); what the keys hold is freed in the background.

-- shared: not_done_with

local known = {}
for i = 3, #ARGV do
  known[ARGV[i]] = true
end
local code, group = not_done_with(KEYS[1], known)
if code then
  return {code, group}
end
local free = tonumber(ARGV[1])
for i = 2, free + 1 do
  if holds(KEYS[i]) then
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
