-- Finds entries that were delivered to every group of the stream and are pending in none.
--
-- From -> to: no message changes its state; only reads.
-- KEYS: 1 stream.
-- ARGV: id to begin at ('(' before it: after it), youngest id to look at, most entries to look at, the one group to ask
--       ('' = all of them), bytes after which no more is read, ids ... of entries that are not to be looked at, in
--       order.
-- Returns: {ids that are delivered to every group asked and pending in none, whether there may be more (1 | 0), the
--          last id looked at ('' = there was none), names of all groups, names of those asked that stand beyond the
--          newest id that the stream gave out: what is before them may never have been read, so nothing is done}.
-- Keeps: I1 (what a group has not read, or has pending, is not named), I9a. Bound: O(entries, and pending ones among
--        them); bytes: the budget and one step more, of entries that are not pending, and where some are done the first
--        and the last entry of the stream.

-- shared: younger

local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err then
  return {{}, 0, '', {}, {}}  -- there is no stream
end
local upto, names, asked, busiest, most = ARGV[2], {}, {}, 0, -1
local stands = {}  -- where each group asked stands
for i, flat in ipairs(groups) do
  local info = {}
  for k = 1, #flat, 2 do
    info[flat[k]] = flat[k + 1]
  end
  names[i] = info['name']
  if ARGV[4] == '' or ARGV[4] == info['name'] then
    asked[#asked + 1] = info['name']
    stands[#asked] = info['last-delivered-id']
    if info['pending'] > most then
      busiest, most = #asked, info['pending']
    end
    if younger(upto, info['last-delivered-id']) then
      upto = info['last-delivered-id']
    end
  end
end
if #asked == 0 then
  return {{}, 0, '', names, {}}
end

-- The server cannot list ids without reading the entries, and pending entries may have gigabytes. So this reads only
-- the ranges between such entries: those that are pending in the group with most of them, and those that must be
-- skipped.
local STEP = 16
local count, budget = tonumber(ARGV[3]), tonumber(ARGV[5])
local found, looked, bytes, step, last, from = {}, 0, 0, 1, '', ARGV[1]

-- No entry follows the largest id, and the server refuses a range there.
local BEYOND = '(18446744073709551615-18446744073709551615'

local function read_up_to(to)
  -- Reads a range. Returns whether it reached its end.
  while from ~= BEYOND do
    local entries = redis.call('XRANGE', KEYS[1], from, to, 'COUNT', step)
    local peak, asked_for = 1, step
    for _, entry in ipairs(entries) do
      local size = 0
      for _, part in ipairs(entry[2]) do
        size = size + #part
      end
      bytes = bytes + size
      peak = math.max(peak, size)
      last = entry[1]
      found[#found + 1] = last
    end
    looked = looked + #entries
    if #entries > 0 then
      from = '(' .. last
      step = math.max(1, math.min(STEP, step * 2, math.floor((budget - bytes) / peak)))
    end
    if #entries < asked_for then
      return true
    end
    if looked >= count or bytes >= budget then
      return false
    end
  end
  return true
end

local more, spared = 1, 6
while more == 1 do
  if from == BEYOND then
    more = 0
    break
  end
  local walls = redis.call('XPENDING', KEYS[1], asked[busiest], from, upto, count)
  local w, full = 1, #walls == count
  local ended = true
  while looked < count and (walls[w] or ARGV[spared]) do
    local wall = walls[w] and walls[w][1]
    if ARGV[spared] and (not wall or not younger(ARGV[spared], wall)) then
      if full and not wall then
        break  -- there may be pending ones before it
      end
      if younger(ARGV[spared], upto) then
        spared = #ARGV + 1
        wall = nil
      else
        if wall == ARGV[spared] then
          w = w + 1
        end
        wall = ARGV[spared]
        spared = spared + 1
      end
    else
      w = w + 1
    end
    if wall then
      if not read_up_to('(' .. wall) then
        ended = false
        break
      end
      from, last, looked = '(' .. wall, wall, looked + 1
    end
  end
  if not ended or looked >= count then
    break
  end
  if not full then
    if read_up_to(upto) then
      more = 0
    end
    break
  end
end

local undone = {}
for i, name in ipairs(asked) do
  local first = i ~= busiest and found[1] or nil
  while first do
    local pending = redis.call('XPENDING', KEYS[1], name, first, found[#found], count)
    for _, entry in ipairs(pending) do
      undone[entry[1]] = true
    end
    first = #pending == count and '(' .. pending[count][1] or nil
    if first == BEYOND then
      first = nil
    end
  end
end
local done = {}
for _, id in ipairs(found) do
  if not undone[id] then
    done[#done + 1] = id
  end
end
local beyond = {}
if #done > 0 then
  local stream = redis.call('XINFO', 'STREAM', KEYS[1])
  for k = 1, #stream, 2 do
    for i, id in ipairs(stream[k] == 'last-generated-id' and stands or {}) do
      if younger(id, stream[k + 1]) then
        done, beyond[#beyond + 1] = {}, asked[i]
      end
    end
  end
end
return {done, more, last, names, beyond}
