-- Stores a layout that names no older one any more.
--
-- From -> to: no message changes its state.
-- KEYS: 1 layout (`bridge.routing.keys.layout_key`), 2 its copy (`bridge.routing.keys.layout_copy_key`). ARGV: layout
--       that the caller knows, layout to store instead.
-- Returns: the stored layout as text: another one than the second, when another caller was faster.
-- Keeps: I9: keys of the older layout are found by its name in this one, until they are gone. Bound: O(1).

local stored = redis.call('GET', KEYS[1]) or ''
if stored == ARGV[1] then
  redis.call('DEL', KEYS[1])  -- a full server accepts all writes of a script if the first needs no memory
  redis.call('MSET', KEYS[1], ARGV[2], KEYS[2], ARGV[2])
  return ARGV[2]
end
return stored
