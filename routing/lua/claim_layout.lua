-- Reads the layout of a stream. Where there is none: stores its copy, or the caller's if the stream is not in use.
--
-- From -> to: no state of a message changes.
-- KEYS: 1 layout (`bridge.routing.keys.layout_key`), 2 the stream as it is with one partition; only with
--       a layout to store.
-- ARGV: layout to store ('' = none), the stream, its first partition, whether the layout was stored before and is lost
--       ('1', else ''), the key of the copy of a layout; only with a layout to store: its last partition, the one after
--       it; then for each older version of the stream: the key of its layout, the stream.
-- Returns: the stored layout as text, or the error of a key that cannot be read; '': none is stored, the stream has one
--          partition; {'LAYOUT'}: none is stored, and the stream has other partitions than the caller's; {'CONFLICT',
--          older version, its layout as text}: this version is split in another way, and nothing was stored.
-- Keeps: promise 1, across producers: all of them put a ticket's messages into the same stream. I9: one key for a
--        stream, and of a later layout a copy, which live as long as the stream.
-- A user without a permission for another key than the layout is served as if that key were not there.
-- Bound: O(older versions + groups of the stream).

-- shared: is_lost

local stored = redis.pcall('GET', KEYS[1])
if stored and stored ~= '' then
  return stored.err or stored
end
-- The copy of a later layout than the first one (`repartition.lua`).
local key = ARGV[5]
local copy = redis.pcall('GET', key)
copy = type(copy) == 'string' and copy:find('{"partitions":', 1, true) == 1 and copy
local function exists(at)
  local key = ARGV[at]
  local found = redis.pcall('EXISTS', key)
  return found
end
local mine, partitions = copy or ARGV[1], exists(3) == 1
if mine == '' then
  if is_lost(ARGV[2], ARGV[3], ARGV[5]) then
    return {'LAYOUT'}
  end
  return ''
end
if ARGV[4] == '' and not copy then
  if partitions then
    -- The first master makes a group in each partition.
    local key = ARGV[3]
    local led = redis.pcall('XINFO', 'GROUPS', key)
    local fewer = exists(6) == 0 and not led.err and #led > 0
    if fewer or exists(7) == 1 then
      return {'LAYOUT'}
    end
  end
  if redis.call('EXISTS', KEYS[2]) == 1 then
    -- A stream that nobody has read, beside partitions: messages of a producer that did not know of them.
    local groups = partitions and redis.pcall('XINFO', 'GROUPS', KEYS[2])
    if not groups or groups.err or #groups > 0 then
      return ''
    end
  end
  local wanted = cjson.decode(mine)
  for i = 8, #ARGV, 2 do
    local key = ARGV[i]
    local theirs = redis.pcall('GET', key)
    if type(theirs) == 'string' then
      local read, found = pcall(cjson.decode, theirs)
      found = read and type(found) == 'table' and found or {}
      local same = found.partitions == wanted.partitions and found.generation == wanted.generation
      if not same and not found.retired_ms then
        return {'CONFLICT', ARGV[i + 1], theirs}
      end
    elseif not theirs and exists(i + 1) == 1 then
      return {'CONFLICT', ARGV[i + 1], ''}
    end
  end
end
-- A full server lets a script continue whose first write needs no memory.
redis.pcall('DEL', KEYS[1])
redis.call('SET', KEYS[1], mine)
if cjson.decode(mine).generation > 0 then
  redis.pcall('SET', key, mine)
end
return mine
