-- Appends the rows whose sequence number is larger than the last appended one of their ticket.
--
-- From -> to: nothing -> UNREAD, for each new row; its ticket's last number moves on in the same step.
-- KEYS: 1 layout of the stream (`bridge.routing.keys.layout_key`), 2 last numbers of this period, 3 of the next one, 4
--       of the one before (`bridge.routing.keys.push_tickets`), 5.. the streams of the rows.
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
--        refused chunk would be skipped for ever. I9: the numbers of an idle ticket expire after two periods.
-- A full server (OOM), or one that forbids this user the numbers, refuses the first HSET, and so the whole script.
-- Otherwise the next attempt would append a row without a number again. Bound: O(rows).

-- shared: is_lost

local layout = redis.pcall('GET', KEYS[1]) or ''
if layout ~= ARGV[1] or layout == '' and is_lost(KEYS[5], ARGV[3], ARGV[4]) then
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
  learn(redis.call('HMGET', KEYS[4], unpack(tickets, from, to)), from)
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
for i = 5, #KEYS do
  entries = entries + redis.call('XLEN', KEYS[i])
end
if ARGV[5] ~= '' and entries >= tonumber(ARGV[5]) then
  return {'WAIT', entries}
end
-- Write to the numbers before the rows, for no ticket: if it is refused here, no row lacks its number.
redis.call('HSET', KEYS[2], '', '')
redis.call('EXPIRE', KEYS[2], ARGV[6])
local present, numbers = ARGV[7], ARGV[2]
local arguments = {'XADD', KEYS[5], '*'}
for _, i in ipairs(new) do
  local n = 3
  local row = (i - first) / (columns + 1)
  if numbers ~= '' then
    arguments[2] = KEYS[5 + numbers:byte(2 * row + 1) * 256 + numbers:byte(2 * row + 2)]
  end
  for c = 1, columns do
    if present == '' or present:byte(row * columns + c) == 49 then
      arguments[n + 1], arguments[n + 2] = ARGV[8 + c], ARGV[i + c]
      n = n + 2
    end
  end
  redis.call(unpack(arguments, 1, n))
end
arguments = {'HSET', KEYS[2]}
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
