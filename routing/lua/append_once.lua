-- Appends the next rows of one partition of a write, if the partition's mark is the one that the caller expects.
--
-- From -> to: nothing -> UNREAD, for each row; the partition's mark moves on in the same step.
-- KEYS: 1 guard of the write (`bridge.routing.keys.push_guard`), 2 layout of the stream
--       (`bridge.routing.keys.layout_key`), 3.. the streams of the rows.
-- ARGV: layout that the caller knows ('' = none is stored), for each row the number of its stream from 0, in two bytes
--       ('' = one stream for all), the first partition that the stream would have, and the key of the
--       copy of a layout (both '' = a layout is known), epoch, partition, partitions in all ('' = not known), mark
--       before these rows, mark behind them, entries in the streams at which to wait ('' = never), life of the guard
--       (s), which values are there ('' = all; else a 1 or 0 for each, row by row), number of columns, their names;
--       then the values, row by row. Without values only the mark moves.
-- Returns: {'OK'}; {'CHANGED', mark}: the mark is another one: another attempt wrote, or an earlier chunk was not
--          accepted: the caller continues from that mark; {'WAIT', entries}: the stream is full: try again later;
--          {'CONFLICT', partitions}: the first attempt had another number of partitions; {'LATE'}: a later epoch is
--          committed: the caller is too late, and gives up; {'LAYOUT', layout}: another layout of the stream is
--          stored: the caller goes by that one. Only 'OK' changed anything.
-- Keeps: promise 4, for producers: each row once, for any number of attempts. I9: the guard expires.
-- A full server (OOM), or one that forbids this user the guard, refuses the first HSET, and so the whole script.
-- Otherwise the next attempt would append a row without a mark again. Bound: O(rows).

-- shared: is_lost

local layout = redis.pcall('GET', KEYS[2]) or ''
if layout ~= ARGV[1] or layout == '' and is_lost(KEYS[3], ARGV[3], ARGV[4]) then
  return {'LAYOUT', layout.err or layout}
end
local at, of = ARGV[5] .. '/' .. ARGV[6], ARGV[5] .. '/of'
local noted = redis.call('HMGET', KEYS[1], at, of, 'floor')
if noted[3] and tonumber(ARGV[5]) < tonumber(noted[3]) then
  return {'LATE'}
end
if noted[2] and ARGV[7] ~= '' and noted[2] ~= ARGV[7] then
  return {'CONFLICT', noted[2]}
end
if (noted[1] or '0 0') ~= ARGV[8] then
  return {'CHANGED', noted[1] or '0 0'}
end
local columns = tonumber(ARGV[13])
local first = 14 + columns
-- This refuses a key that is no stream, too. Later, rows for other streams would be in.
local entries = 0
for i = 3, #KEYS do
  entries = entries + redis.call('XLEN', KEYS[i])
end
if ARGV[10] ~= '' and first <= #ARGV and entries >= tonumber(ARGV[10]) then
  return {'WAIT', entries}
end
-- Write to the guard before the rows: if it is refused here, no row lacks its mark.
redis.call('HSET', KEYS[1], at, ARGV[8])
redis.call('EXPIRE', KEYS[1], ARGV[11])
local call, stream, present, numbers = redis.call, KEYS[3], ARGV[12], ARGV[2]
if columns == 2 and present == '' and numbers == '' then
  -- The usual case, ticket and payload: needs no table for each row.
  local one, two = ARGV[14], ARGV[15]
  for i = first, #ARGV, 2 do
    call('XADD', stream, '*', one, ARGV[i], two, ARGV[i + 1])
  end
else
  local arguments = {'XADD', KEYS[3], '*'}
  for i = first, #ARGV, columns do
    local n = 3
    if numbers ~= '' then
      local row = (i - first) / columns
      arguments[2] = KEYS[3 + numbers:byte(2 * row + 1) * 256 + numbers:byte(2 * row + 2)]
    end
    for c = 0, columns - 1 do
      if present == '' or present:byte(i - first + c + 1) == 49 then
        arguments[n + 1], arguments[n + 2] = ARGV[14 + c], ARGV[i + c]
        n = n + 2
      end
    end
    call(unpack(arguments, 1, n))
  end
end
redis.call('HSET', KEYS[1], at, ARGV[9])
if ARGV[7] ~= '' and not noted[2] then
  redis.call('HSET', KEYS[1], of, ARGV[7])
end
return {'OK'}
