-- Moves delayed messages that are due to the messages that wait, and hands their entries over.
--
-- From -> to: DELAYED -> WAITING. KEYS: 1 leader, 2 delayed, 3 late, 4 stream, 5 history.
-- ARGV: token, group, master, time before which a message must be due by another clock as well (ms, '' = no other
--       clock), id up to which the caller has read, most messages, bytes after which no more are moved, bytes of an
--       entry that is handed over whole, entries that the history may have (0: there is none), names ... of the fields
--       of a larger entry that are handed over.
-- Returns: {'OK', entries ([id, [field, value ...], due ms] ...), due ms of the next one ('' = there is none), time
--          (ms) before which all are due that are to be moved now}; {'DEPOSED'}: another master leads; {'NOGROUP'}: the
--          group is gone: the caller reads the lane again. Only 'OK' changed anything. An entry that was deleted has no
--          fields.
-- Keeps: I1, I7 (it leaves `delayed`, is in `late` and pending under the master's name, in one step), I8, I9a; promise
--        1: what was added before a message was due is read before the message is moved.
-- Bound: O(messages, times log of all that are delayed); bytes: the budget and one entry more.

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
local upto = '(' .. string.format('%.0f', before)
if redis.pcall('XCLAIM', KEYS[4], ARGV[2], ARGV[3], 0, '0-1', 'JUSTID').err then
  return {'NOGROUP'}  -- found out before anything is written
end

local found = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', upto, 'WITHSCORES', 'LIMIT', 0, ARGV[6])
local budget, limit = tonumber(ARGV[7]), tonumber(ARGV[8])
local wanted = {}
for i = 10, #ARGV do
  wanted[ARGV[i]] = true
end
local entries, members, scored, ids, rows, bytes = {}, {}, {}, {}, {}, 0
for i = 1, #found, 2 do
  if bytes >= budget then
    break
  end
  local member, due = found[i], found[i + 1]
  local id = string.gsub(member, '%a', '')
  local fields = (redis.call('XRANGE', KEYS[4], id, id)[1] or {id, {}})[2]
  local size, ticket = 0, ''
  for f = 1, #fields, 2 do
    size = size + #fields[f] + #fields[f + 1]
    if fields[f] == 'ticket_id' then
      ticket = fields[f + 1]
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
  entries[#entries + 1] = {id, fields, due}
  members[#members + 1] = member
  scored[#scored + 1] = due
  scored[#scored + 1] = member
  ids[#ids + 1] = id
  rows[#rows + 1] = {id, ticket, '', '', 0, 0, tonumber(due), 0, 0, 'due'}
end
if #ids > 0 then
  -- First: a full server lets a script continue whose first write needs no memory.
  redis.call('ZREM', KEYS[2], unpack(members))
  redis.call('ZADD', KEYS[3], unpack(scored))
  -- Also those that somebody has taken from the pending list by hand.
  ids[#ids + 1] = 'FORCE'
  ids[#ids + 1] = 'JUSTID'
  redis.call('XCLAIM', KEYS[4], ARGV[2], ARGV[3], 0, unpack(ids))
end
if #rows > 0 and ARGV[9] ~= '0' then
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[9], '*', 'd', cjson.encode(rows))
end
local next = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
return {'OK', entries, next[2] or '', string.format('%.0f', before)}
