-- Checks that a member (worker or master) fits its lane. The first member sets the lane's app and format.
--
-- From -> to: no message changes its state.
-- KEYS: 1 about, 2 layout of the whole stream (`bridge.routing.keys.layout_key`).
-- ARGV: the format that the member writes, the name of its app ('' = it has none), the generation of the lane's
--       partition.
-- Returns: {'OK'}; {'NEWER', format}: a newer version has this lane; {'OTHER', name}: the lane is another app's: the
--          member stops; {'LAYOUT'}: the stream was retired, or has left this partition. Only 'OK' changed anything.
-- Keeps: I9, also for a member that goes by a layout of before. Bound: O(1).

-- shared: is_left

if is_left(KEYS[2], ARGV[3]) then
  return {'LAYOUT'}
end
local format = redis.call('HGET', KEYS[1], 'format')
if format and tonumber(format) > tonumber(ARGV[1]) then
  return {'NEWER', format}
end
local name = redis.call('HGET', KEYS[1], 'app')
if name and ARGV[2] ~= '' and name ~= ARGV[2] then
  return {'OTHER', name}
end
if not format or (not name and ARGV[2] ~= '') then
  redis.call('HDEL', KEYS[1], '')  -- a full server accepts all writes of a script if the first needs no memory
  redis.call('HSET', KEYS[1], 'format', format or ARGV[1])
  if ARGV[2] ~= '' then
    redis.call('HSET', KEYS[1], 'app', ARGV[2])
  end
end
return {'OK'}
