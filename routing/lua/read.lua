-- Reads new or waiting entries of the group, only for the leader of the current term.
--
-- From -> to: UNREAD -> WAITING; what waits already changes nothing.
-- KEYS: 1 leader, 2 stream.
-- ARGV: token, group, master, most entries to read, id up to which the group has read ('' = whatever it is), bytes
--       after which no more is read, bytes of an entry that is handed over whole, entries to read at first,
--       '>' = new ones, or the id after which those that wait under the master's name are read, names ... of the
--       fields that a filter looks at.
-- Returns: {'OK', bytes of the largest entry, whether there may be more (1 | 0), entries ...}; {'DEPOSED'}: another
--          master leads: nothing was read; {'NOGROUP'}: the group is gone: the caller reads the lane again;
--          {'CHANGED'}: the group was set back or forward by hand. Nothing was read: done messages could be read again,
--          or waiting ones twice. The caller puts the group where it was.
--          An entry is its id, the number of its field names and values, and these. They are not lists of their own:
--          each list costs the server as much as three of its values. An entry that was deleted has no fields.
--          An entry above the limit is returned with ticket_id, task, payload and the fields of the filter only. If
--          these are above the limit too: id, the negative number of what follows, bytes, fields, and the beginnings
--          of its first fields.
-- Keeps: I2, I8, I9a. Bound: O(entries + groups of the stream); bytes: the budget and one step more, and now and then
--        the first and the last entry of the stream.

-- A blocking XREADGROUP of a frozen master could still take entries after another master leads. The leader would then
-- dispatch later messages of their tickets first.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end
local may_forget  -- the entries that the group has read, where the read may make the server forget how many
if ARGV[5] ~= '' then
  local groups = redis.pcall('XINFO', 'GROUPS', KEYS[2])
  if groups.err then
    return {'NOGROUP'}  -- there is no stream
  end
  for _, info in ipairs(groups) do
    local by_name = {}
    for i = 1, #info, 2 do
      by_name[info[i]] = info[i + 1]
    end
    if by_name['name'] == ARGV[2] then
      if by_name['last-delivered-id'] ~= ARGV[5] then
        return {'CHANGED'}
      end
      may_forget = not by_name['lag'] and by_name['entries-read']
    end
  end
end

local most, budget, limit = tonumber(ARGV[4]), tonumber(ARGV[6]), tonumber(ARGV[7])
local SHOWN, FIELDS = 1024, 16  -- bytes and number of what is shown of the fields of an entry that is too large

local function beginnings(fields)
  local shown = {}
  for i = 1, math.min(#fields, FIELDS * 2) do
    shown[i] = string.sub(fields[i], 1, SHOWN)
  end
  return shown
end

local wanted = {ticket_id = true, task = true, payload = true}  -- and the options: the caller names them
for i = 10, #ARGV do
  wanted[ARGV[i]] = true
end

local function slim(fields)
  -- The fields that are used; nil: they are above the limit too. Others may have hundreds of megabytes.
  local kept, size, payload = {}, 0, nil
  for i = 1, #fields, 2 do
    if wanted[fields[i]] then
      kept[#kept + 1] = fields[i]
      kept[#kept + 1] = fields[i + 1]
      size = size + #fields[i] + #fields[i + 1]
      payload = payload or fields[i] == 'payload'
    end
  end
  return payload and size <= limit and kept or nil
end

-- The size of an entry is known only after it was read. So this reads few entries at first if the last ones were large,
-- and never so many that they could have far more bytes than the budget.
local STEP = math.max(1, math.min(16, math.floor(4 * budget / limit)))
local found, at, count, last = {'', 0, 0}, 3, 0, nil  -- what is returned, its length, its entries, the last id
local bytes, largest, more = 0, 0, 1
local step = math.min(tonumber(ARGV[8]), STEP, most)
local after = ARGV[9]
while count < most and bytes < budget do
  local reply = redis.pcall('XREADGROUP', 'GROUP', ARGV[2], ARGV[3], 'COUNT', step, 'STREAMS', KEYS[2], after)
  if reply and reply.err then
    if string.find(reply.err, 'NOGROUP', 1, true) then
      return {'NOGROUP'}
    end
    return reply
  end
  local entries = reply and reply[1][2] or {}
  local peak = 1
  for _, entry in ipairs(entries) do
    local size, fields = 0, entry[2] or {}
    for i = 1, #fields do
      size = size + #fields[i]
    end
    last = entry[1]
    found[at + 1] = last
    at = at + 2
    if size > limit then
      local whole = #fields / 2
      fields = slim(fields)
      if not fields then
        fields = beginnings(entry[2])
        found[at], found[at + 1], found[at + 2] = -#fields, size, whole
        at = at + 2
      else
        found[at] = #fields
      end
    else
      found[at] = #fields
    end
    for i = 1, #fields do
      found[at + i] = fields[i]
    end
    at = at + #fields
    bytes = bytes + size
    peak = math.max(peak, size)
  end
  count = count + #entries
  largest = math.max(largest, peak)
  if #entries < step then
    more = 0
    break
  end
  if after ~= '>' then
    after = last
  end
  step = math.max(1, math.min(most - count, STEP, math.floor((budget - bytes) / peak)))
end
if may_forget and after == '>' and more == 1 and count > 0 then
  -- Since 7.0 the server counts the entries that the group has read, to know its lag. It loses the count when the last
  -- one that was read is deleted, as done entries are, and an older one stays. Nothing behind it was deleted or trimmed
  -- if it is the youngest deleted one: then the count is known. Else the server must not be told one: it would take
  -- deleted entries for unread ones, and a lane beyond `bridge_max_lag` would skip others in their place.
  local info = redis.pcall('XINFO', 'STREAM', KEYS[2])
  for i = 1, #info, 2 do
    if info[i] == 'max-deleted-entry-id' and info[i + 1] == ARGV[5] then
      redis.pcall('XGROUP', 'SETID', KEYS[2], ARGV[2], last, 'ENTRIESREAD', may_forget + count)
    end
  end
end
found[1] = 'OK'
found[2], found[3] = largest, more
return found
