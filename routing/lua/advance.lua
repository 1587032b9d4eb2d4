-- Settles a batch of outcomes and dispatches a batch of runs, in one step.
--
-- From -> to: IN_FLIGHT -> DONE | AWAITING_RETRY | DEAD | WAITING, WAITING | AWAITING_RETRY -> DEAD,
--             WAITING <-> PARKED, DEAD -> WAITING, and then WAITING | AWAITING_RETRY -> IN_FLIGHT.
-- KEYS: 1 leader, 2 tickets, 3 applied, 4 retries, 5 outcomes, 6 stream, 7 fence, 8 dead, 9 counts, 10 history,
--       11 drains, 12.. the queue of each consumer that is dispatched to.
-- ARGV: token, group, master, first outcome id to keep ('' = keep all), and behind it, after spaces, ids before
--       it that are kept, too, oldest first; number of fences needed,
--       opening (the text before the fence in every Celery message), entries that the history may have, rows for the
--       history ('' = none); then counted lists, each preceded by its length:
--       expected (ticket, record | ''), orders (ids in the outcome stream), acknowledged ids, ids given back, shelved
--       (name, ids) of parked tickets, records (ticket, record), released tickets, retries (due ms, ticket), retries to
--       remove (ticket), dead letters (number of words, at most 6,000; words ...), dead letters that are revived (id),
--       counters (name, amount), drains (consumer, order | '' = it takes work again), and dispatches: consumer, ids,
--       runs (ticket, offset, record tail), messages (text).
-- Returns: {'OK', fence base, ids acknowledged, ids that should have been pending, were not, and are now}
--          {'DEPOSED'}: another master leads; nothing was changed; the caller stops leading.
--          {'CONFLICT', ticket}: a record is not what the caller thought; nothing was changed; it reads the lane anew.
--          {'WITHDRAWN'}: whoever gave one of the orders took it back; nothing was changed; it reads the lane anew.
--          {'NOGROUP'}: the group is gone; nothing was changed; it reads the lane anew.
-- Keeps: I2 (records are compared before they are replaced), I3 (XACK with the release), I4 (fences), I7, I8.
-- Bound: O(what the batch holds), times log of the pending list.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end

local CHUNK = 1000  -- below Lua's limit on unpacked values
local at = 8
local function count()
  at = at + 1
  return tonumber(ARGV[at])
end

local function call_chunked(head, per_item, n, last, more)
  -- Calls `head` with the next n * per_item arguments, at most CHUNK of them at a time; returns the sum of the replies.
  local total = 0
  local stop = at + n * per_item
  local step = CHUNK - CHUNK % per_item
  while at < stop do
    local upto = math.min(at + step, stop)
    local words = {unpack(head)}
    local w = #words
    for i = at + 1, upto do
      w = w + 1
      words[w] = ARGV[i]
    end
    if last then
      words[w + 1] = last
      words[w + 2] = more
    end
    local reply = redis.call(unpack(words))
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
local n = count()
local first = at
local i = 0
while i < n do
  local upto = math.min(i + CHUNK, n)
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
at = first + n * 2
n = count()
for i = at + 1, at + n do
  if #redis.call('XRANGE', KEYS[5], ARGV[i], ARGV[i]) == 0 then
    return {'WITHDRAWN'}
  end
end
at = at + n

local group, master = ARGV[2], ARGV[3]
if redis.pcall('XCLAIM', KEYS[6], group, master, 0, '0-1', 'JUSTID').err then
  return {'NOGROUP'}  -- found out before anything is written: a script that fails half way is not undone
end

local mended = 0
local function claim(name, n)
  -- Makes the next n entries pending under the name; also those that somebody has taken from the pending list by hand.
  local first = at
  if call_chunked({'XCLAIM', KEYS[6], group, name, 0}, 1, n, 'JUSTID') < n then
    at = first
    local before = redis.call('XPENDING', KEYS[6], group)[1]
    call_chunked({'XCLAIM', KEYS[6], group, name, 0}, 1, n, 'JUSTID', 'FORCE')
    mended = mended + redis.call('XPENDING', KEYS[6], group)[1] - before
  end
end

local acked = call_chunked({'XACK', KEYS[6], group}, 1, count())
claim(master, count())
for _ = 1, count() do
  at = at + 1
  claim(ARGV[at], count())
end
call_chunked({'HSET', KEYS[2]}, 2, count())
n = count()
local released = at
call_chunked({'HDEL', KEYS[2]}, 1, n)
at = released
call_chunked({'HDEL', KEYS[3]}, 1, n)
call_chunked({'ZADD', KEYS[4]}, 2, count())
call_chunked({'ZREM', KEYS[4]}, 1, count())
for _ = 1, count() do
  n = count()
  redis.call('XADD', KEYS[8], '*', unpack(ARGV, at + 1, at + n))  -- in one call: a letter is one entry
  at = at + n
end
call_chunked({'XDEL', KEYS[8]}, 1, count())
for _ = 1, count() do
  redis.call('HINCRBY', KEYS[9], ARGV[at + 1], ARGV[at + 2])
  at = at + 2
end
for _ = 1, count() do
  if ARGV[at + 2] == '' then
    redis.call('HDEL', KEYS[11], ARGV[at + 1])
  else
    redis.call('HSET', KEYS[11], ARGV[at + 1], ARGV[at + 2])
  end
  at = at + 2
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
  if base <= last then
    base = last + 1
  end
  redis.call('SET', KEYS[7], string.format('%.0f', base + fences - 1))
  local opening = ARGV[6] .. string.format('%.0f', base)
  for g = 1, count() do
    at = at + 1
    claim(ARGV[at], count())
    local runs = count()
    local words = {'HSET', KEYS[2]}
    for r = 1, runs do
      words[#words + 1] = ARGV[at + 1]
      words[#words + 1] = '[' .. string.format('%.0f', base + tonumber(ARGV[at + 2])) .. ARGV[at + 3]
      at = at + 3
      if #words > CHUNK or r == runs then
        redis.call(unpack(words))
        words = {'HSET', KEYS[2]}
      end
    end
    for _ = 1, count() do
      at = at + 1
      redis.call('LPUSH', KEYS[11 + g], opening .. ARGV[at])
    end
  end
end
return {'OK', string.format('%.0f', base), acked, mended}
