-- Appends messages of one task in their order, all of them or none.
--
-- From -> to: nothing -> UNREAD, for each message.
-- KEYS: 1 layout (`bridge.routing.keys.layout_key`), 2.. the streams of the messages.
-- ARGV: layout that the caller knows ('' = none is stored), for each stream what follows its ids (a list with spaces;
--       '' = nothing), for each message the number of its stream from 0, in two bytes ('' = one stream for all), the
--       first partition that the stream would have, and the key of the copy of a layout (both '' = a layout is known),
--       task, names of further fields (a list with spaces; '' = none); then ticket, payload and the values of these
--       fields of each message. A value: '' = this message has no such field; '+30000' = so many milliseconds from now,
--       by the server's clock; '=1700000000000' = a time in milliseconds since 1970; any other is the field as it is.
-- Returns: {'OK', ids of the messages, in their order, in one text, which a caller reads faster than a list};
--          {'LAYOUT', layout}: another layout is stored, and nothing was added: the caller goes by that one; {'ERR'}:
--          there are further fields, the user may not run TIME, and nothing was added.
-- Keeps: promise 1, for producers: a server that is full, or forbids the user XADD, refuses the first message and so
--        all of them. Sent one by one, a message could be refused and a later one of its ticket be taken. All producers
--        put a ticket's messages into the same stream.
-- Bound: O(messages), which the caller keeps to 500 and 1 MiB, or one message that is larger.

-- shared: is_lost
-- shared: pushed_fields

local layout = redis.pcall('GET', KEYS[1]) or ''
if layout ~= ARGV[1] or layout == '' and is_lost(KEYS[2], ARGV[4], ARGV[5]) then
  return {'LAYOUT', layout.err or layout}
end
local call, task, places = redis.call, ARGV[6], ARGV[3]
local ids = {}
if places == '' and ARGV[7] == '' then
  local stream, suffix = KEYS[2], ARGV[2]
  for i = 8, #ARGV, 2 do
    ids[#ids + 1] = call('XADD', stream, '*', 'ticket_id', ARGV[i], 'task', task, 'payload', ARGV[i + 1]) .. suffix
  end
  return {'OK', table.concat(ids, ' ')}
end
for i = 2, #KEYS do
  -- A key that is no stream is refused here. Later, messages for other streams would be in.
  call('XLEN', KEYS[i])
end
local suffixes, names = words(ARGV[2]), words(ARGV[7])
local now = #names == 0 or time_ms()
if not now then
  return {'ERR'}
end
local number = 0
for i = 8, #ARGV, 2 + #names do
  local at = places == '' and 0 or places:byte(2 * number + 1) * 256 + places:byte(2 * number + 2)
  number = number + 1
  local id
  if #names == 0 then
    id = call('XADD', KEYS[2 + at], '*', 'ticket_id', ARGV[i], 'task', task, 'payload', ARGV[i + 1])
  else
    id = call('XADD', KEYS[2 + at], '*', unpack(pushed_fields(ARGV[i], task, ARGV[i + 1], names, i + 2, now)))
  end
  ids[number] = id .. (suffixes[1 + at] or '')
end
return {'OK', table.concat(ids, ' ')}
