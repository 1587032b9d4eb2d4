-- Appends messages of one task in their order. If the same call was carried out before, only returns their ids.
--
-- From -> to: nothing -> UNREAD, for each message, the first time.
-- KEYS: 1 layout (`bridge.routing.keys.layout_key`), 2 the ids that were pushed under the idempotency key
--       (`bridge.routing.keys.push_once`), 3.. the streams of the messages.
-- ARGV: layout that the caller knows ('' = none is stored), for each stream what follows its ids (a list with spaces;
--       '' = nothing), for each message the number of its stream from 0, in two bytes ('' = one stream for all), the
--       first partition that the stream would have ('' = a layout is known), number of the first message among all of
--       the push, digest of the messages, life of the note (s), task; then ticket and payload of each message.
-- Returns: {'OK', ids of the messages, in their order}; {'CHANGED'}: other messages were pushed under this key; nothing
--          was changed; {'LAYOUT', layout}: another layout is stored, and nothing was added: the caller goes by that
--          one.
-- Keeps: promise 4, for producers: each message once, for any number of attempts, also when the layout changed between
--        two of them. I9: the note expires.
-- A full server refuses the first HSET and so all of it: a message without its note would be appended again.
-- Bound: O(messages), which the caller keeps to 500 and 1 MiB, or one message that is larger.

local noted = redis.call('HGET', KEYS[2], ARGV[5])
if noted and noted ~= '' then
  local digest, ids = noted:match('^(%x+) (.*)$')
  if digest ~= ARGV[6] then
    return {'CHANGED'}
  end
  return {'OK', ids}
end
local layout = redis.pcall('GET', KEYS[1]) or ''
-- Without a layout there are no partitions, unless it was lost.
local key = ARGV[4]
local lost = layout == '' and redis.pcall('EXISTS', KEYS[3]) == 0 and redis.pcall('EXISTS', key) == 1
if layout ~= ARGV[1] or lost then
  return {'LAYOUT', layout.err or layout}
end
local call, task, places = redis.call, ARGV[8], ARGV[3]
for i = 3, #KEYS do
  -- A key that is no stream is refused here. Later, messages for other streams would be in.
  call('XLEN', KEYS[i])
end
call('HSET', KEYS[2], ARGV[5], '')
call('EXPIRE', KEYS[2], ARGV[7])
local suffixes = {}
for suffix in ARGV[2]:gmatch('%S+') do
  suffixes[#suffixes + 1] = suffix
end
local ids = {}
for i = 9, #ARGV, 2 do
  local at = places == '' and 0 or places:byte(i - 8) * 256 + places:byte(i - 7)
  ids[#ids + 1] = call('XADD', KEYS[3 + at], '*', 'ticket_id', ARGV[i], 'task', task, 'payload', ARGV[i + 1])
    .. (suffixes[1 + at] or '')
end
local text = table.concat(ids, ' ')
call('HSET', KEYS[2], ARGV[5], ARGV[6] .. ' ' .. text)
return {'OK', text}
