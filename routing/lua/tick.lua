-- Notes a tick of a schedule's entry, and appends its messages, in one step: so a tick is pushed once.
--
-- From -> to: nothing -> UNREAD, for each message.
-- KEYS: 1 schedule (`bridge.routing.keys.schedule_key`), 2 layout (`bridge.routing.keys.layout_key`), then the leaders
--       of lanes, the last of them that of the caller's lane, then the streams of the messages.
-- ARGV: number of leaders, token, field of the entry, what the caller knows of it ('' = nothing is stored), what is
--       stored from now on, time of the tick (Unix ms), layout that the caller knows ('' = none is stored), the first
--       partition that the stream would have, and the key of the copy of a layout (both '' = a layout is known), task;
--       then number of the stream from 1, ticket and payload of each message.
-- Returns: {'OK', ids of the messages by their streams, in one text}; {'CHANGED', what is stored}: the caller compares
--          it again; {'OTHER'}: a lane before the caller's has a leader, which pushes the ticks; {'DEPOSED'}: the
--          caller does not lead its lane any more; {'WAIT', ms}: by the server's clock the tick is so much later;
--          {'LAYOUT', layout}: another layout is stored, and the caller goes by that one. Nothing was changed, unless
--          it is 'OK'.
-- Keeps: I8; promise 4, for schedules. I9: a field for each entry, which the leader deletes with the entry.
-- A full server refuses the first HSET and so all of it.
-- Bound: O(messages), which the caller keeps to 500 and 1 MiB, and O(lanes before the caller's).

-- shared: is_lost

local leaders = tonumber(ARGV[1])
for i = 3, 1 + leaders do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    return {'OTHER'}
  end
end
if redis.call('GET', KEYS[2 + leaders]) ~= ARGV[2] then
  return {'DEPOSED'}
end
local stored = redis.call('HGET', KEYS[1], ARGV[3]) or ''
if stored ~= ARGV[4] then
  return {'CHANGED', stored}
end
local now = redis.call('TIME')
local early = tonumber(ARGV[6]) - (now[1] * 1000 + math.floor(now[2] / 1000))
if early > 0 then
  return {'WAIT', early}
end
local first = 3 + leaders
if #KEYS >= first then
  local layout = redis.pcall('GET', KEYS[2]) or ''
  if layout ~= ARGV[7] or layout == '' and is_lost(KEYS[first], ARGV[8], ARGV[9]) then
    return {'LAYOUT', layout.err or layout}
  end
end
for i = first, #KEYS do
  -- A key that is no stream is refused here. Later, the tick would be noted.
  redis.call('XLEN', KEYS[i])
end
redis.call('HSET', KEYS[1], ARGV[3], ARGV[5])
local ids = {}
for i = 11, #ARGV, 3 do
  local at = first - 1 + tonumber(ARGV[i])
  ids[#ids + 1] = redis.call('XADD', KEYS[at], '*', 'ticket_id', ARGV[i + 1], 'task', ARGV[10], 'payload', ARGV[i + 2])
end
return {'OK', table.concat(ids, ' ')}
