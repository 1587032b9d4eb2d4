-- Stores a layout that names no older one any more.
--
-- From -> to: no message changes its state.
-- KEYS: 1 layout (`bridge.routing.keys.layout_key`), 2 its copy. ARGV: layout that the caller knows, layout to store
--       instead.
-- Returns: the stored layout as text: another one than the second, when another caller was faster.
-- Keeps: I9: keys of the older layout are found by its name in this one, until they are gone. Bound: O(1).

local stored = redis.call('GET', KEYS[1]) or ''
if stored == ARGV[1] then
  redis.call('DEL', KEYS[1])  -- a full server lets a script continue whose first write needs no memory
  redis.call('SET', KEYS[1], ARGV[2])
  -- The copy stands where the first layout had its first partition, as long as that is not there.
  local copy = redis.pcall('GET', KEYS[2])
  if not copy or type(copy) == 'string' and copy:find('{"partitions":', 1, true) == 1 then
    redis.call('SET', KEYS[2], ARGV[2])
  end
  return ARGV[2]
end
return stored
