-- Settles a batch of outcomes and dispatches a batch of runs, in one step.
--
-- From -> to: IN_FLIGHT -> DONE | AWAITING_RETRY | DEAD | WAITING, WAITING | AWAITING_RETRY -> DEAD,
--             WAITING <-> PARKED, DEAD -> WAITING, WAITING -> DELAYED, DELAYED | WAITING | AWAITING_RETRY -> DONE
--             (cancelled), and then WAITING | AWAITING_RETRY -> IN_FLIGHT.
-- KEYS: 1 leader, 2 tickets, 3 applied, 4 retries, 5 outcomes, 6 stream, 7 fence, 8 dead, 9 counts, 10 history,
--       11 drains, 12 delayed, 13 late, 14 holding, 15.. the queue of each consumer that is dispatched to; behind them,
--       of each older version its leader and stream, of each newer one its tickets, and then the fences of all these.
-- ARGV: token, group, master, ids of outcomes, separated by spaces (the first: outcomes from this id on are kept,
--       '' = all; the others: older ids that are kept as well, oldest first), number of fences needed,
--       opening (the text before the fence in every Celery message), entries that the history may have, rows for the
--       history ('' = none), number of sections; of each section its name and its number of arguments, in the order in
--       which they are read here, without empty ones; then the arguments of all sections. The sections are:
--       expected (ticket, record | ''), orders (id in the outcome stream), older (token of its leader, '' = nobody may
--       lead it; id up to which it has read), newer (name of its stream), contested (ticket; all that are dispatched
--       where there are older or newer versions), acknowledged (id), given_back (id), shelves (name in the group of a
--       parked ticket or of delayed messages, number of its ids), shelved (id), records (ticket, record), released
--       (ticket), retries (due ms, ticket), due (ticket whose retry is over), delayed (due ms, member of a message that
--       others overtake until then), late (due ms, member of one that is due), holding (due ms, member of one for which
--       its ticket waits), rescheduled (new due ms, member), over (member of a message that is none of these any more),
--       dead (number of arguments of a letter: at most 6000), letters (argument), replayed (id of a letter), counts
--       (name, amount), drains (consumer, order | '' = it takes work again), dispatches (consumer, number of its ids,
--       of its runs, of its texts), ids (id), runs (ticket, fence offset, record tail), texts (Celery message without
--       opening).
-- Returns: {'OK', fence base, ids acknowledged, ids that should have been pending, were not, and are now, {counter,
--          error, ...}}: these counters hold no number, or too large a one, and were left alone.
--          {'DEPOSED'}: another master leads; nothing was changed; the caller stops leading.
--          {'CONFLICT', ticket}: a record is not what the caller thought; nothing was changed; it reads the lane again.
--          {'WITHDRAWN'}: one of the orders was withdrawn; nothing was changed; it reads the lane again.
--          {'NOGROUP'}: the group is gone; nothing was changed; it reads the lane again.
--          {'OLDER', stream}: another master leads an older version; nothing was changed; the caller stops leading.
--          {'BEHIND', stream}: an older version has many unread entries; {'DEFERRED', {ticket ...}}: an older version
--          has unread messages of these tickets, or a newer one has them in flight. Nothing was changed; the caller
--          sends the batch without dispatches of them.
-- Keeps: I2 (records are compared before they are replaced), I3 (XACK with the release), I4 (fences, over all
--        versions), I7, I8; the order of a ticket over the versions of its stream.
-- Bound: O(what the batch holds), times log of the pending list; 512 entries of each older version.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end

local place = 9
local stop = place + 2 * ARGV[place]
local at = stop
local function section(name)
  -- The place in ARGV before its first argument, and its number of arguments.
  if place == stop or ARGV[place + 1] ~= name then
    return at, 0
  end
  place = place + 2
  local first, size = at, tonumber(ARGV[place])
  at = at + size
  return first, size
end

local CHUNK = 1000  -- below Lua's limit on unpacked values; even: pairs stay together

local function call_chunked(head, at, n, last, more)
  -- Calls `head` with n arguments behind ARGV[at], at most CHUNK of them at a time; returns the sum of the replies.
  local total = 0
  local stop = at + n
  while at < stop do
    local upto = math.min(at + CHUNK, stop)
    local arguments = {unpack(head)}
    local w = #arguments
    for i = at + 1, upto do
      w = w + 1
      arguments[w] = ARGV[i]
    end
    if last then
      arguments[w + 1] = last
      arguments[w + 2] = more
    end
    local reply = redis.call(unpack(arguments))
    if type(reply) == 'number' then
      total = total + reply
    elseif type(reply) == 'table' then
      total = total + #reply
    end
    at = upto
  end
  return total
end

-- Compare all records first: until then nothing may be written.
local first, size = section('expected')
local i = 0
while i < size / 2 do
  local upto = math.min(i + CHUNK, size / 2)
  local names = {}
  for k = i, upto - 1 do
    names[k - i + 1] = ARGV[first + k * 2 + 1]
  end
  local found = redis.call('HMGET', KEYS[2], unpack(names))
  for k = i, upto - 1 do
    if (found[k - i + 1] or '') ~= ARGV[first + k * 2 + 2] then
      return {'CONFLICT', ARGV[first + k * 2 + 1]}
    end
  end
  i = upto
end
first, size = section('orders')
for i = first + 1, first + size do
  if #redis.call('XRANGE', KEYS[5], ARGV[i], ARGV[i]) == 0 then
    return {'WITHDRAWN'}
  end
end

local older_at, older = section('older')
older = older / 2
local newer_at, newer = section('newer')
local chain = #KEYS - 3 * older - 2 * newer  -- the place in KEYS before those of the other versions
first, size = section('contested')
if size > 0 then
  local contested, deferred = {}, {}
  for i = first + 1, first + size do
    contested[ARGV[i]] = true
  end
  for o = 0, older - 1 do
    -- The caller knows what the older leader has read. So this looks only at entries that came later: they are few.
    local place = chain + 2 * o
    if (redis.call('GET', KEYS[place + 1]) or '') ~= ARGV[older_at + 2 * o + 1] then
      return {'OLDER', KEYS[place + 2]}
    end
    local after, looked, bytes, more = '(' .. ARGV[older_at + 2 * o + 2], 0, 0, true
    while more do
      local entries = redis.pcall('XRANGE', KEYS[place + 2], after, '+', 'COUNT', 16)
      more = not entries.err and #entries == 16  -- the server refuses a range after the largest possible id
      for _, entry in ipairs(entries.err and {} or entries) do
        local fields = entry[2]
        for i = 1, #fields, 2 do
          bytes = bytes + #fields[i] + #fields[i + 1]
          if fields[i] == 'ticket_id' and contested[fields[i + 1]] then
            deferred[#deferred + 1] = fields[i + 1]
          end
        end
        after = '(' .. entry[1]
      end
      looked = looked + 16
      if more and (looked >= 512 or bytes >= 4194304) then
        return {'BEHIND', KEYS[place + 2]}
      end
    end
  end
  for place = chain + 2 * older + 1, chain + 2 * older + newer do
    local i = 0
    while i < size do
      local upto = math.min(i + CHUNK, size)
      local found = redis.call('HMGET', KEYS[place], unpack(ARGV, first + i + 1, first + upto))
      for k = i + 1, upto do
        if found[k - i] and string.find(found[k - i], '^%[[1-9]') then
          deferred[#deferred + 1] = ARGV[first + k]
        end
      end
      i = upto
    end
  end
  if #deferred > 0 then
    return {'DEFERRED', deferred}
  end
end

-- shared: is_gone

local group, master = ARGV[2], ARGV[3]
-- A script that fails half way is not undone: messages could be acknowledged and have no letter. So a key of another
-- type is found before the first write, by commands that the ACL of a master has allowed so far. Queues are not looked
-- at: what was not put into one is sent again.
for i, reply in ipairs({
  redis.pcall('XCLAIM', KEYS[6], group, master, 0, '0-0', 'JUSTID'),
  redis.pcall('HGET', KEYS[2], ''), redis.pcall('HGET', KEYS[3], ''), redis.pcall('ZSCORE', KEYS[4], ''),
  redis.pcall('XLEN', KEYS[5]), redis.pcall('GET', KEYS[7]), redis.pcall('XLEN', KEYS[8]),
  redis.pcall('HGET', KEYS[9], ''), redis.pcall('XLEN', KEYS[10]), redis.pcall('HGET', KEYS[11], ''),
  redis.pcall('ZSCORE', KEYS[12], ''), redis.pcall('ZSCORE', KEYS[13], ''), redis.pcall('ZSCORE', KEYS[14], ''),
}) do
  if type(reply) == 'table' and reply.err then
    return i == 1 and is_gone(reply.err) and {'NOGROUP'} or reply
  end
end

local mended = 0
local function claim(name, at, n)
  -- Makes n entries pending under the name; also those that somebody has taken from the pending list by hand.
  if call_chunked({'XCLAIM', KEYS[6], group, name, 0}, at, n, 'JUSTID') < n then
    local before = redis.call('XPENDING', KEYS[6], group)[1]
    call_chunked({'XCLAIM', KEYS[6], group, name, 0}, at, n, 'JUSTID', 'FORCE')
    mended = mended + redis.call('XPENDING', KEYS[6], group)[1] - before
  end
end

local acked = call_chunked({'XACK', KEYS[6], group}, section('acknowledged'))
claim(master, section('given_back'))
first, size = section('shelves')
local id = section('shelved')
for i = first + 1, first + size, 2 do
  local n = tonumber(ARGV[i + 1])
  claim(ARGV[i], id, n)
  id = id + n
end
call_chunked({'HSET', KEYS[2]}, section('records'))
first, size = section('released')
call_chunked({'HDEL', KEYS[2]}, first, size)
call_chunked({'HDEL', KEYS[3]}, first, size)
call_chunked({'ZADD', KEYS[4]}, section('retries'))
call_chunked({'ZREM', KEYS[4]}, section('due'))
-- NX: a due time that an operator changed stays, when a new leader delays a message again.
call_chunked({'ZADD', KEYS[12], 'NX'}, section('delayed'))
call_chunked({'ZADD', KEYS[13]}, section('late'))
call_chunked({'ZADD', KEYS[14], 'NX'}, section('holding'))
first, size = section('rescheduled')
call_chunked({'ZADD', KEYS[12], 'XX'}, first, size)
call_chunked({'ZADD', KEYS[14], 'XX'}, first, size)
first, size = section('over')
call_chunked({'ZREM', KEYS[12]}, first, size)
call_chunked({'ZREM', KEYS[13]}, first, size)
call_chunked({'ZREM', KEYS[14]}, first, size)
first, size = section('dead')
local argument = section('letters')
for i = first + 1, first + size do
  local n = tonumber(ARGV[i])
  redis.call('XADD', KEYS[8], '*', unpack(ARGV, argument + 1, argument + n))  -- in one call: a letter is one entry
  argument = argument + n
end
call_chunked({'XDEL', KEYS[8]}, section('replayed'))
first, size = section('counts')
local uncounted = {}
for i = first + 1, first + size, 2 do
  -- Somebody may have written what is no number. Raised here, the error would leave half a step behind.
  local raised = redis.pcall('HINCRBY', KEYS[9], ARGV[i], ARGV[i + 1])
  if type(raised) == 'table' then
    uncounted[#uncounted + 1] = ARGV[i]
    uncounted[#uncounted + 1] = raised.err
  end
end
first, size = section('drains')
for i = first + 1, first + size, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[11], ARGV[i])
  else
    redis.call('HSET', KEYS[11], ARGV[i], ARGV[i + 1])
  end
end
if ARGV[8] ~= '' then
  redis.call('XADD', KEYS[10], 'MAXLEN', '~', ARGV[7], '*', 'd', ARGV[8])
end
if ARGV[4] ~= '' then
  local keep, oldest = string.match(ARGV[4], '^(%S+) ?(%S*)')
  if oldest ~= '' then
    local kept = {}
    for id in string.gmatch(ARGV[4], '%S+') do
      kept[id] = true
    end
    -- Bounded: behind the oldest that is kept there are others that are, and what this batch settles.
    for _, entry in ipairs(redis.call('XRANGE', KEYS[5], oldest, keep)) do
      if not kept[entry[1]] then
        redis.call('XDEL', KEYS[5], entry[1])
      end
    end
    keep = oldest
  end
  redis.call('XTRIM', KEYS[5], 'MINID', keep)
end

local base = 0
local fences = tonumber(ARGV[5])
if fences > 0 then
  local now = redis.call('TIME')
  base = tonumber(now[1]) * 1000000 + tonumber(now[2])
  local last = tonumber(redis.call('GET', KEYS[7]) or '0')
  for place = #KEYS - older - newer + 1, #KEYS do
    last = math.max(last, tonumber(redis.call('GET', KEYS[place]) or '0'))
  end
  if base <= last then
    base = last + 1
  end
  redis.call('SET', KEYS[7], string.format('%.0f', base + fences - 1))
  local opening = ARGV[6] .. string.format('%.0f', base)
  first, size = section('dispatches')
  local id, run, text = (section('ids')), (section('runs')), (section('texts'))
  for d = 0, size / 4 - 1 do
    local to = first + d * 4
    local ids, runs, texts = tonumber(ARGV[to + 2]), tonumber(ARGV[to + 3]), tonumber(ARGV[to + 4])
    claim(ARGV[to + 1], id, ids)
    id = id + ids
    local arguments = {'HSET', KEYS[2]}
    for r = 1, runs do
      arguments[#arguments + 1] = ARGV[run + 1]
      arguments[#arguments + 1] = '[' .. string.format('%.0f', base + tonumber(ARGV[run + 2])) .. ARGV[run + 3]
      run = run + 3
      if #arguments > CHUNK or r == runs then
        redis.call(unpack(arguments))
        arguments = {'HSET', KEYS[2]}
      end
    end
    for i = text + 1, text + texts do
      redis.call('LPUSH', KEYS[15 + d], opening .. ARGV[i])
    end
    text = text + texts
  end
end
return {'OK', string.format('%.0f', base), acked, mended, uncounted}
