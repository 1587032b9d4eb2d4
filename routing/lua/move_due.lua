-- Moves delayed messages that are due to the messages that wait, and hands their entries over.
--
-- From -> to: DELAYED -> WAITING. KEYS: 1 leader, 2 delayed, 3 late, 4 stream, 5 history.
-- ARGV: token, group, master, time before which a message must be due by another clock as well (ms, '' = no other
--       clock), id up to which the caller has read, most messages, bytes after which no more are moved, bytes of an
--       entry that is handed over whole, entries that the history may have (0: there is none), names ... of the fields
--       of a larger entry that are handed over.
-- Returns: {'OK', due ms of the next one ('' = there is none), time (ms) before which all are due that are to be moved
--          now, entries ...}; {'FOREIGN', the same two, members ...}: these are no messages, as somebody wrote them by
--          hand, and only they were removed: the caller logs them, and calls again; {'DEPOSED'}: another master leads;
--          {'NOGROUP'}: the group is gone: the caller reads the lane again. The last two changed nothing.
--          An entry is its id, when it was due (ms), the number of its field names and values, and these, in one list:
--          lists of their own cost more (read.lua). An entry that was deleted has no fields.
-- Keeps: I1, I7 (it leaves `delayed`, is in `late` and pending under the master's name, in one step), I8, I9a; promise
--        1: what was added before a message was due is read before the message is moved.
-- Bound: O(messages, times log of all that are delayed); bytes: the budget and one step more.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end
local time = redis.call('TIME')
local before = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if ARGV[4] ~= '' then
  before = math.min(before, tonumber(ARGV[4]))
end
-- An entry that the caller has not read may have been added before a message was due. No entry follows the largest id,
-- and the server refuses a range there.
local unread = redis.pcall('XRANGE', KEYS[4], '(' .. ARGV[5], '+', 'COUNT', 1)
if not unread.err and #unread > 0 then
  before = math.min(before, tonumber(string.match(ARGV[5], '^%d+')))
end
before = string.format('%.0f', before)
local upto = '(' .. before
-- shared: is_gone

local tried = redis.pcall('XCLAIM', KEYS[4], ARGV[2], ARGV[3], 0, '0-0', 'JUSTID')
if tried.err then
  return is_gone(tried.err) and {'NOGROUP'} or tried  -- found out before anything is written
end

local found = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', upto, 'WITHSCORES', 'LIMIT', 0, ARGV[6])
local budget, limit = tonumber(ARGV[7]), tonumber(ARGV[8])
local wanted, ids, is_due, foreign = {}, {}, {}, {}
for i = 10, #ARGV do
  wanted[ARGV[i]] = true
end

local function fits(number)
  -- Whether a number of 20 digits or more can be in an id.
  return #number == 20 and number <= '18446744073709551615'
end

for i = 1, #found, 2 do
  local ms, sequence = string.match(found[i], '^%l(%d+)%-%l(%d+)$')
  if ms and (#ms < 20 or fits(ms)) and (#sequence < 20 or fits(sequence)) then
    local id = ms .. '-' .. sequence
    ids[#ids + 1] = id
    is_due[id] = true
  else
    foreign[#foreign + 1] = found[i]
  end
end

local function next_due()
  return redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or ''
end

if #foreign > 0 then
  -- The server refuses them in the commands below, so no message would be moved any more.
  redis.call('ZREM', KEYS[2], unpack(foreign))
  return {'FOREIGN', next_due(), before, unpack(foreign)}
end

-- Messages that are due together often follow each other in the stream. A range finds the place of its first entry by
-- looking at up to a hundred others, so one range reads some of them: more as long as they follow, and never so many
-- that they could have far more bytes than the budget.
local STEP = math.max(1, math.min(16, math.floor(4 * budget / limit)))
local step, fields_of, bytes = 1, {}, 0

local function read_from(id)
  -- Reads the entry, and perhaps some that follow it.
  fields_of[id] = {}  -- unless it is there
  local follow = 0
  for _, entry in ipairs(redis.call('XRANGE', KEYS[4], id, '+', 'COUNT', step)) do
    local fields = entry[2]
    if is_due[entry[1]] then
      follow = follow + 1
      fields_of[entry[1]] = fields
    else
      for f = 1, #fields do
        bytes = bytes + #fields[f]
      end
    end
  end
  step = follow * 2 > step and math.min(STEP, step * 2) or 1
end

local moved, at, count, scored, rows = {'', '', ''}, 3, 0, {}, {}
local historical = ARGV[9] ~= '0'
for i, id in ipairs(ids) do
  if bytes >= budget then
    break
  end
  if not fields_of[id] then
    read_from(id)
  end
  local fields = fields_of[id]
  local size, ticket = 0, ''
  for f = 1, #fields, 2 do
    local name, value = fields[f], fields[f + 1]
    size = size + #name + #value
    if name == 'ticket_id' then
      ticket = value
    end
  end
  if size > limit then
    local kept = {}
    for f = 1, #fields, 2 do
      if wanted[fields[f]] then
        kept[#kept + 1] = fields[f]
        kept[#kept + 1] = fields[f + 1]
      end
    end
    fields = kept
  end
  bytes = bytes + size
  count = i
  local due = found[2 * i]
  scored[2 * i - 1] = due
  scored[2 * i] = found[2 * i - 1]
  moved[at + 1], moved[at + 2], moved[at + 3] = id, due, #fields
  at = at + 3
  for f = 1, #fields do
    moved[at + f] = fields[f]
  end
  at = at + #fields
  if historical then
    rows[i] = string.format('["%s",%s,"","",0,0,%.0f,0,0,"due"]', id, cjson.encode(ticket), due)
  end
end
if count > 0 then
  -- First: a full server accepts all writes of a script if the first needs no memory.
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, count - 1)
  redis.call('ZADD', KEYS[3], unpack(scored))
  -- Also those that somebody has taken from the pending list by hand.
  ids[count + 1], ids[count + 2] = 'FORCE', 'JUSTID'
  redis.call('XCLAIM', KEYS[4], ARGV[2], ARGV[3], 0, unpack(ids, 1, count + 2))
end
if count > 0 and historical then
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[9], '*', 'd', '[' .. table.concat(rows, ',') .. ']')
end
moved[1] = 'OK'
moved[2] = next_due()
moved[3] = before
return moved
