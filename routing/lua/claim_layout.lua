-- Reads the layout of a stream. Where there is none: stores its copy, or the caller's if the stream is not in use.
--
-- From -> to: no state of a message changes.
-- KEYS: 1 layout (`bridge.routing.keys.layout_key`), 2 the stream as it is with one partition; only with
--       a layout of several partitions to store.
-- ARGV: layout to store ('' = none), the stream, its first partition, whether the layout was stored before and is lost
--       ('1', else ''), the key of the copy of a layout; only with a layout to store: its last partition, the one after
--       it; then for each other version of the stream: the key of its layout, the stream, the key of the copy.
-- Returns: the stored layout as text, or the error of a key that cannot be read; '': none is stored, the stream has one
--          partition; {'LAYOUT'}: none is stored, and the stream has other partitions than the caller's; {'CONFLICT',
--          other version, its layout as text}: this version is split in another way, and nothing was stored.
-- The caller's layout is stored with the generation that the other versions have: lanes of all versions have the same
-- partitions. One partition is only stored when they have a later generation than the first one.
-- Keeps: promise 1, across producers: all of them put a ticket's messages into the same stream. I9: one key for a
--        stream, and of a later layout a copy, which live as long as the stream.
-- A user without a permission for another key than the layout is served as if that key were not there.
-- Bound: O(other versions + groups of the stream).

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
local wanted = mine ~= '' and cjson.decode(mine)
local found_lost = ARGV[4] == '1' or copy
if not wanted or wanted.partitions == 1 and not found_lost then
  if is_lost(ARGV[2], ARGV[3], ARGV[5]) then
    return {'LAYOUT'}
  elseif not wanted then
    return ''
  end
end
if not found_lost then
  if partitions and wanted.partitions > 1 then
    -- The first master makes a group in each partition.
    local key = ARGV[3]
    local led = redis.pcall('XINFO', 'GROUPS', key)
    local fewer = exists(6) == 0 and not led.err and #led > 0
    if fewer or exists(7) == 1 then
      return {'LAYOUT'}
    end
  end
  local there = exists(2)
  if KEYS[2] then
    there = redis.call('EXISTS', KEYS[2])
  end
  if there ~= 0 then
    -- A stream that nobody has read, beside partitions: messages of a producer that did not know of them.
    local key = ARGV[2]
    local groups = partitions and redis.pcall('XINFO', 'GROUPS', key)
    if not groups or groups.err or #groups > 0 then
      return ''
    end
  end
  local generation
  for i = 8, #ARGV, 3 do
    local key = ARGV[i]
    local theirs = redis.pcall('GET', key)
    if not theirs then
      key = ARGV[i + 2]
      theirs = redis.pcall('GET', key)
    end
    if type(theirs) == 'string' then
      local read, found = pcall(cjson.decode, theirs)
      found = read and type(found) == 'table' and found or {}
      if not found.retired_ms then
        generation = generation or found.generation
        if found.partitions ~= wanted.partitions or found.generation ~= generation then
          return {'CONFLICT', ARGV[i + 1], theirs}
        end
      end
    elseif not theirs and wanted.partitions > 1 and exists(i + 1) == 1 then
      return {'CONFLICT', ARGV[i + 1], ''}
    end
  end
  if type(generation) == 'number' and generation > 0 then
    mine = mine:gsub('"generation":0', ('"generation":%.0f'):format(generation), 1)
  elseif wanted.partitions == 1 then
    return ''
  end
end
-- A full server accepts all writes of a script if the first needs no memory.
redis.pcall('DEL', KEYS[1])
redis.call('SET', KEYS[1], mine)
if cjson.decode(mine).generation > 0 then
  local key = ARGV[5]
  redis.pcall('SET', key, mine)
end
return mine
