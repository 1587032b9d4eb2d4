-- Appends the next rows of one partition of a write, if the partition's mark is the one that the caller expects.
--
-- From -> to: nothing -> UNREAD, for each row; the partition's mark moves on in the same step.
-- KEYS: 1 stream, 2 guard of the write (`bridge.routing.keys.push_guard`).
-- ARGV: epoch, partition, partitions in all ('' = not known), mark before these rows, mark behind them, entries in the
--       stream at which to wait ('' = never), life of the guard (s), which values are there ('' = all; else a 1 or 0
--       for each, row by row), number of columns, their names; then the values, row by row. Without values only the
--       mark moves.
-- Returns: {'OK'}; {'CHANGED', mark}: the mark is another one: another attempt wrote, or an earlier chunk was not
--          accepted: the caller continues from that mark; {'WAIT', entries}: the stream is full: try again later;
--          {'CONFLICT', partitions}: the first attempt had another number of partitions; {'LATE'}: a later epoch is
--          committed: the caller is too late, and gives up. Only 'OK' changed anything.
-- Keeps: promise 4, for producers: each row once, for any number of attempts. I9: the guard expires.
-- A full server (OOM), or one that forbids this user the guard, refuses the first HSET, and so the whole script.
-- Otherwise the next attempt would append a row without a mark again. Bound: O(rows).

local at, of = ARGV[1] .. '/' .. ARGV[2], ARGV[1] .. '/of'
local noted = redis.call('HMGET', KEYS[2], at, of, 'floor')
if noted[3] and tonumber(ARGV[1]) < tonumber(noted[3]) then
  return {'LATE'}
end
if noted[2] and ARGV[3] ~= '' and noted[2] ~= ARGV[3] then
  return {'CONFLICT', noted[2]}
end
if (noted[1] or '0 0') ~= ARGV[4] then
  return {'CHANGED', noted[1] or '0 0'}
end
local columns = tonumber(ARGV[9])
local first = 10 + columns
if ARGV[6] ~= '' and first <= #ARGV then
  local entries = redis.call('XLEN', KEYS[1])
  if entries >= tonumber(ARGV[6]) then
    return {'WAIT', entries}
  end
end
-- Write to the guard before the rows: if it is refused here, no row lacks its mark.
redis.call('HSET', KEYS[2], at, ARGV[4])
redis.call('EXPIRE', KEYS[2], ARGV[7])
local call, stream, present = redis.call, KEYS[1], ARGV[8]
if columns == 2 and present == '' then
  -- The usual case, ticket and payload: needs no table for each row.
  local one, two = ARGV[10], ARGV[11]
  for i = first, #ARGV, 2 do
    call('XADD', stream, '*', one, ARGV[i], two, ARGV[i + 1])
  end
else
  local arguments = {'XADD', KEYS[1], '*'}
  for i = first, #ARGV, columns do
    local n = 3
    for c = 0, columns - 1 do
      if present == '' or present:byte(i - first + c + 1) == 49 then
        arguments[n + 1], arguments[n + 2] = ARGV[10 + c], ARGV[i + c]
        n = n + 2
      end
    end
    call(unpack(arguments, 1, n))
  end
end
redis.call('HSET', KEYS[2], at, ARGV[5])
if ARGV[3] ~= '' and not noted[2] then
  redis.call('HSET', KEYS[2], of, ARGV[3])
end
return {'OK'}
