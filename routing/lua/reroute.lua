-- Takes the tickets of an incarnation whose lease is over back from its consumer.
--
-- From -> to: IN_FLIGHT -> AWAITING_RETRY (the oldest message of each run), IN_FLIGHT -> WAITING (the rest, and
--             all of a ticket that is parked now).
-- KEYS: 1 leader, 2 tickets, 3 retries, 4 outcomes, 5 stream, 6 the lease of the incarnation, 7 counts,
--       8 history.
-- ARGV: token, group, master, incarnation, id of the last outcome that the caller has read, entries that the
--       history may have, rows for the history ('' = none); then counted lists: tickets (ticket, expected record, new
--       record, due ms, '' = it is parked), ids to claim back.
-- Returns: 'OK'; 'DEPOSED': the caller does not lead any more; 'ALIVE': the lease holds, so its tickets stay (I5);
--          'UNREAD': it wrote outcomes that the caller has not read yet, or there are too many unread ones to check:
--          read them first, they may be successes;
--          'CONFLICT': a record is not what the caller thought. Only 'OK' changed anything.
--          'NOGROUP': the group is gone: the caller reads the lane again.
-- Keeps: I5: the lease is checked in the step that moves the tickets. I8.
-- Bound: O(tickets of the incarnation + outcomes not yet read, at most 10,000 of them).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
if redis.call('EXISTS', KEYS[6]) == 1 then
  return 'ALIVE'
end
local unread = redis.call('XRANGE', KEYS[4], '(' .. ARGV[5], '+', 'COUNT', 10000)
if #unread == 10000 then
  return 'UNREAD'  -- there may be more than were looked at, and one of those may be its own
end
for _, entry in ipairs(unread) do
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'i' and fields[i + 1] == ARGV[4] then
      return 'UNREAD'
    end
  end
end
-- shared: is_gone

local tried = redis.pcall('XCLAIM', KEYS[5], ARGV[2], ARGV[3], 0, '0-0', 'JUSTID')
if tried.err then
  return is_gone(tried.err) and 'NOGROUP' or tried  -- before anything is written
end
local at = 8
local n = tonumber(ARGV[at])
for i = 0, n - 1 do
  local t = at + 1 + i * 4
  if (redis.call('HGET', KEYS[2], ARGV[t]) or '') ~= ARGV[t + 1] then
    return 'CONFLICT'
  end
end
for i = 0, n - 1 do
  local t = at + 1 + i * 4
  redis.call('HSET', KEYS[2], ARGV[t], ARGV[t + 2])
  if ARGV[t + 3] ~= '' then
    redis.call('ZADD', KEYS[3], ARGV[t + 3], ARGV[t])
  end
end
at = at + 1 + n * 4
for i = at + 1, at + tonumber(ARGV[at]) do
  redis.call('XCLAIM', KEYS[5], ARGV[2], ARGV[3], 0, ARGV[i], 'FORCE', 'JUSTID')
end
if ARGV[7] ~= '' then
  redis.call('XADD', KEYS[8], 'MAXLEN', '~', ARGV[6], '*', 'd', ARGV[7])
end
redis.pcall('HINCRBY', KEYS[7], 'rerouted', n)  -- what is no number is left alone: the tickets have moved
return 'OK'
