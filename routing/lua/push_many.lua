-- Appends messages of one task in their order, all of them or none.
--
-- From -> to: nothing -> UNREAD, for each message.
-- KEYS: 1 layout (`bridge.routing.keys.layout_key`), 2.. the streams of the messages.
-- ARGV: layout that the caller knows ('' = none is stored), for each stream what follows its ids (a list with spaces;
--       '' = nothing), for each message the number of its stream from 0, in two bytes ('' = one stream for all), the
--       first partition that the stream would have ('' = a layout is known), task; then ticket and payload of each
--       message.
-- Returns: {'OK', ids of the messages, in their order, in one text, which a caller reads faster than a list};
--          {'LAYOUT', layout}: another layout is stored, and nothing was added: the caller goes by that one.
-- Keeps: promise 1, for producers: a server that is full, or forbids the user XADD, refuses the first message and so
--        all of them. Sent one by one, a message could be refused and a later one of its ticket be taken. All producers
--        put a ticket's messages into the same stream.
-- Bound: O(messages), which the caller keeps to 500 and 1 MiB, or one message that is larger.

local layout = redis.pcall('GET', KEYS[1]) or ''
-- Without a layout there are no partitions, unless it was lost.
local key = ARGV[4]
local lost = layout == '' and redis.pcall('EXISTS', KEYS[2]) == 0 and redis.pcall('EXISTS', key) == 1
if layout ~= ARGV[1] or lost then
  return {'LAYOUT', layout.err or layout}
end
local call, task, places = redis.call, ARGV[5], ARGV[3]
local ids = {}
if places == '' then
  local stream, suffix = KEYS[2], ARGV[2]
  for i = 6, #ARGV, 2 do
    ids[#ids + 1] = call('XADD', stream, '*', 'ticket_id', ARGV[i], 'task', task, 'payload', ARGV[i + 1]) .. suffix
  end
  return {'OK', table.concat(ids, ' ')}
end
for i = 2, #KEYS do
  -- A key that is no stream is refused here. Later, messages for other streams would be in.
  call('XLEN', KEYS[i])
end
local suffixes = {}
for suffix in ARGV[2]:gmatch('%S+') do
  suffixes[#suffixes + 1] = suffix
end
for i = 6, #ARGV, 2 do
  local at = places:byte(i - 5) * 256 + places:byte(i - 4)
  ids[#ids + 1] = call('XADD', KEYS[2 + at], '*', 'ticket_id', ARGV[i], 'task', task, 'payload', ARGV[i + 1])
    .. suffixes[1 + at]
end
return {'OK', table.concat(ids, ' ')}
