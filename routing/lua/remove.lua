-- Removes done entries from the stream, or only looks which it would remove.
--
-- From -> to: no message changes its state: what goes is DONE, in this lane and in every other one of the stream.
-- KEYS: 1 leader, 2 stream.
-- ARGV: token, group, whether only to look (1 | 0), number of other groups that the caller knows of, their names ...,
--       ids ... in order, that are done in the caller's group.
-- Returns: {'OK', ids that were removed, or would be}: those that another group has not read, or has pending, stay;
--          {'DEPOSED'}: another master leads: nothing was removed; {'CHANGED'}: the stream has other groups than the
--          caller thought, or not the caller's: it may be another stream by now. Nothing was removed; the caller asks
--          again which entries they are all done with.
-- Keeps: I1 (what some group has not read, or has pending, stays), I8. Bound: O(ids), times other groups.

-- shared: younger

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end

local known, others = {}, tonumber(ARGV[4])
for i = 5, 4 + others do
  known[ARGV[i]] = true
end
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[2])
if groups.err then
  return {'CHANGED'}  -- there is no stream
end
local found, own, upto = 0, false, nil
for _, flat in ipairs(groups) do
  local info = {}
  for k = 1, #flat, 2 do
    info[flat[k]] = flat[k + 1]
  end
  if info['name'] == ARGV[2] then
    own = true
  else
    if not known[info['name']] then
      return {'CHANGED'}
    end
    found = found + 1
    local stands = info['last-delivered-id']
    if not upto or younger(upto, stands) then
      upto = stands
    end
  end
end
if found ~= others or not own then
  return {'CHANGED'}
end

-- One look at each group's range: done entries lie close together, with few pending ones between them. Where there are
-- more than a page of those, what follows the page is asked for entry by entry.
local first, count = 5 + others, #ARGV - 4 - others
local needed = {}
for name in pairs(count > 0 and known or {}) do
  local page = redis.call('XPENDING', KEYS[2], name, ARGV[first], ARGV[#ARGV], count)
  for _, entry in ipairs(page) do
    needed[entry[1]] = true
  end
  local looked = #page == count and page[count][1]
  for i = first, looked and #ARGV or 0 do
    if younger(ARGV[i], looked) and #redis.call('XPENDING', KEYS[2], name, ARGV[i], ARGV[i], 1) > 0 then
      needed[ARGV[i]] = true
    end
  end
end
local ids = {}
for i = first, #ARGV do
  if not needed[ARGV[i]] and not (upto and younger(ARGV[i], upto)) then
    ids[#ids + 1] = ARGV[i]
  end
end
for from = 1, ARGV[3] == '1' and 0 or #ids, 1000 do  -- below Lua's limit on unpacked values
  redis.call('XDEL', KEYS[2], unpack(ids, from, math.min(from + 999, #ids)))
end
return {'OK', ids}
