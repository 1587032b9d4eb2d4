-- Appends the rows whose sequence number is larger than the last appended one of their ticket.
--
-- From -> to: nothing -> UNREAD, for each new row; its ticket's last number moves on in the same step.
-- KEYS: 1 layout of the stream (`bridge.routing.keys.layout_key`), 2 and 3 last numbers of tickets, in two hashes
--       (`bridge.routing.keys.push_tickets`), 4.. the streams of the rows.
-- ARGV: layout that the caller knows ('' = none is stored), for each row the number of its stream from 0, in two bytes
--       ('' = one stream for all), the first partition that the stream would have, and the key of the
--       copy of a layout (both '' = a layout is known), entries in the streams at which to wait ('' = never), life of
--       the last numbers (s), which values are there ('' = all; else a 1 or 0 for each, row by row), number of columns,
--       their names, the ticket's first; then the rows: sequence number, values.
-- Returns: {'OK', rows that were new}; {'WAIT', entries}: there are new rows, and the stream is full: try again later;
--          {'LAYOUT', layout}: another layout of the stream is stored, and nothing was added: the caller goes by that
--          one.
-- Keeps: promise 4, for producers: each row once, for any number of attempts, if the rows of a ticket come in the order
--        of their numbers in each. A caller sends a chunk after the one before it was accepted. Otherwise the rows of a
--        refused chunk would be skipped for ever. I9: the numbers of an idle ticket expire after one to two lives.
-- One hash is written to. When its life is over it is left to expire, and the other one begins, if that is gone. So a
-- number is found for as long as its writer asked for, whatever other writers ask for.
-- A full server (OOM), or one that forbids this user the numbers, refuses the first HSET, and so the whole script.
-- Otherwise the next attempt would append a row without a number again. Bound: O(rows).

-- shared: is_lost

local layout = redis.pcall('GET', KEYS[1]) or ''
if layout ~= ARGV[1] or layout == '' and is_lost(KEYS[4], ARGV[3], ARGV[4]) then
  return {'LAYOUT', layout.err or layout}
end
local columns = tonumber(ARGV[8])
local first = 9 + columns
local last, tickets = {}, {}
for i = first, #ARGV, columns + 1 do
  local ticket = ARGV[i + 1]
  if last[ticket] == nil then
    last[ticket] = false
    tickets[#tickets + 1] = ticket
  end
end
-- The number of arguments of one call from Lua is limited.
local function learn(numbers, from)
  for i, number in ipairs(numbers) do
    local ticket = tickets[from + i - 1]
    if number and (not last[ticket] or tonumber(number) > last[ticket]) then
      last[ticket] = tonumber(number)
    end
  end
end
for from = 1, #tickets, 2000 do
  local to = math.min(from + 1999, #tickets)
  learn(redis.call('HMGET', KEYS[2], unpack(tickets, from, to)), from)
  learn(redis.call('HMGET', KEYS[3], unpack(tickets, from, to)), from)
end
local new, news = {}, {}
for i = first, #ARGV, columns + 1 do
  local ticket, number = ARGV[i + 1], tonumber(ARGV[i])
  if not last[ticket] or number > last[ticket] then
    last[ticket] = number
    news[ticket] = ARGV[i]
    new[#new + 1] = i
  end
end
if #new == 0 then
  return {'OK', 0}
end
-- This refuses a key that is no stream, too. Later, rows for other streams would be in.
local entries = 0
for i = 4, #KEYS do
  entries = entries + redis.call('XLEN', KEYS[i])
end
if ARGV[5] ~= '' and entries >= tonumber(ARGV[5]) then
  return {'WAIT', entries}
end
-- Of a hash: when it began, and its life (both in s), which it keeps under no ticket.
local function about(key)
  local began, life = (redis.call('HGET', key, '') or ''):match('^(%d+) (%d+)$')
  return tonumber(began), tonumber(life)
end
local now, own = tonumber(redis.call('TIME')[1]), tonumber(ARGV[6])
local into = 2
local began, life = about(KEYS[2])
local other_began, other_life = about(KEYS[3])
if other_began and (not began or other_began > began) then
  into, began, life, other_began = 3, other_began, other_life, began
end
if not began then
  began, life = now, own
elseif now - began >= life and not other_began then
  into, began, life = 5 - into, now, own
end
life = math.max(life, own)
-- Write to the numbers before the rows: if it is refused here, no row lacks its number.
redis.call('HSET', KEYS[into], '', ('%d %d'):format(began, life))
redis.call('EXPIRE', KEYS[into], life)
local present, numbers = ARGV[7], ARGV[2]
local arguments = {'XADD', KEYS[4], '*'}
for _, i in ipairs(new) do
  local n = 3
  local row = (i - first) / (columns + 1)
  if numbers ~= '' then
    arguments[2] = KEYS[4 + numbers:byte(2 * row + 1) * 256 + numbers:byte(2 * row + 2)]
  end
  for c = 1, columns do
    if present == '' or present:byte(row * columns + c) == 49 then
      arguments[n + 1], arguments[n + 2] = ARGV[8 + c], ARGV[i + c]
      n = n + 2
    end
  end
  redis.call(unpack(arguments, 1, n))
end
arguments = {'HSET', KEYS[into]}
local n = 2
for ticket, number in pairs(news) do
  arguments[n + 1], arguments[n + 2] = ticket, number
  n = n + 2
  if n > 4000 then
    redis.call(unpack(arguments, 1, n))
    n = 2
  end
end
if n > 2 then
  redis.call(unpack(arguments, 1, n))
end
return {'OK', #new}
