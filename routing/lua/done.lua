-- Finds entries that every group of the stream has done with.
--
-- From -> to: no message changes its state; only reads.
-- KEYS: 1 stream.
-- ARGV: id to begin at ('(' before it: after it), youngest id to look at, most entries to look at, the one group to ask
--       ('' = all of them).
-- Returns: {ids that are delivered to every group asked and pending in none, number of entries looked at, the last
--          one's id ('' = there was none), names of all groups}.
-- Keeps: I1 (what a group has not read, or has pending, is not named). Bound: O(entries, and pending ones among them).

local function younger(a, b)
  -- Whether id a is younger than id b. Compared as text: a sequence may be larger than what Lua's numbers hold.
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if a_ms ~= b_ms then
    return #a_ms > #b_ms or (#a_ms == #b_ms and a_ms > b_ms)
  end
  return #a_seq > #b_seq or (#a_seq == #b_seq and a_seq > b_seq)
end

local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err then
  return {{}, 0, '', {}}  -- there is no stream
end
local upto, names, asked = ARGV[2], {}, {}
for i, flat in ipairs(groups) do
  local told = {}
  for k = 1, #flat, 2 do
    told[flat[k]] = flat[k + 1]
  end
  names[i] = told['name']
  if ARGV[4] == '' or ARGV[4] == told['name'] then
    asked[#asked + 1] = told['name']
    if younger(upto, told['last-delivered-id']) then
      upto = told['last-delivered-id']
    end
  end
end

local count = tonumber(ARGV[3])
local entries = redis.call('XRANGE', KEYS[1], ARGV[1], upto, 'COUNT', count)
if #entries == 0 or #asked == 0 then
  return {{}, 0, '', names}
end
local last = entries[#entries][1]
local undone = {}
for _, name in ipairs(asked) do
  local from = entries[1][1]
  while from do
    local pending = redis.call('XPENDING', KEYS[1], name, from, last, count)
    for _, entry in ipairs(pending) do
      undone[entry[1]] = true
    end
    from = #pending == count and '(' .. pending[count][1] or nil
  end
end
local done = {}
for _, entry in ipairs(entries) do
  if not undone[entry[1]] then
    done[#done + 1] = entry[1]
  end
end
return {done, #entries, last, names}
