-- Appends messages of one task in their order. If the same call was carried out before, only returns their ids.
--
-- From -> to: nothing -> UNREAD, for each message, the first time.
-- KEYS: 1 layout (`bridge.routing.keys.layout_key`), 2 the ids that were pushed under the idempotency key
--       (`bridge.routing.keys.push_once`), 3.. the streams of the messages.
-- ARGV: layout that the caller knows ('' = none is stored), for each stream what follows its ids (a list with spaces;
--       '' = nothing), for each message the number of its stream from 0, in two bytes ('' = one stream for all), the
--       first partition that the stream would have, and the key of the copy of a layout (both '' = a layout is known),
--       number of the first message among all of the push, digest of the messages, life of the note (s), the earliest
--       of all times of the push that must not be past ('' = there is none), task, names of further fields (a list with
--       spaces; '' = none); then ticket, payload and the values of these fields of each
--       message. A value: '' = this message has no such field; '+30000' = so many milliseconds from now, by the
--       server's clock; '=1700000000000' = a time in milliseconds since 1970, which must not be past; any other is the
--       field as it is.
-- Returns: {'OK', ids of the messages, in their order}; {'CHANGED'}: other messages were pushed under this key; nothing
--          was changed; {'LAYOUT', layout}: another layout is stored, and nothing was added: the caller goes by that
--          one; {'PAST'}: a time of the push is past, and nothing of it was added: the caller refuses it. A push that
--          has begun is not refused: it is repeated because an answer was lost, maybe for longer than the delay;
--          {'ERR'}: there are further fields, the user may not run TIME, and nothing was added.
-- Keeps: promise 4, for producers: each message once, for any number of attempts, also when the layout changed between
--        two of them. I9: the note expires.
-- A full server refuses the first HSET and so all of it: a message without its note would be appended again.
-- Bound: O(messages), which the caller keeps to 500 and 1 MiB, or one message that is larger.

-- shared: is_lost
-- shared: pushed_fields

local noted = redis.call('HGET', KEYS[2], ARGV[6])
if noted and noted ~= '' then
  local digest, ids = noted:match('^(%x+) (.*)$')
  if digest ~= ARGV[7] then
    return {'CHANGED'}
  end
  return {'OK', ids}
end
local layout = redis.pcall('GET', KEYS[1]) or ''
if layout ~= ARGV[1] or layout == '' and is_lost(KEYS[3], ARGV[4], ARGV[5]) then
  return {'LAYOUT', layout.err or layout}
end
local call, task, places = redis.call, ARGV[10], ARGV[3]
for i = 3, #KEYS do
  -- A key that is no stream is refused here. Later, messages for other streams would be in.
  call('XLEN', KEYS[i])
end
local suffixes, names = words(ARGV[2]), words(ARGV[11])
local now = #names == 0 or time_ms()
if not now then
  return {'ERR'}
end
if ARGV[9] ~= '' and call('EXISTS', KEYS[2]) == 0 then
  local now_ms = time_ms()
  if not now_ms then
    return {'ERR'}
  elseif tonumber(ARGV[9]) < now_ms then
    return {'PAST'}
  end
end
local messages = {}
for i = 12, #ARGV, 2 + #names do
  messages[#messages + 1] = pushed_fields(ARGV[i], task, ARGV[i + 1], names, i + 2, now)
end
call('HSET', KEYS[2], ARGV[6], '')
call('EXPIRE', KEYS[2], ARGV[8])
local ids = {}
for number, fields in ipairs(messages) do
  local at = places == '' and 0 or places:byte(2 * number - 1) * 256 + places:byte(2 * number)
  ids[number] = call('XADD', KEYS[3 + at], '*', unpack(fields)) .. (suffixes[1 + at] or '')
end
local text = table.concat(ids, ' ')
call('HSET', KEYS[2], ARGV[6], ARGV[7] .. ' ' .. text)
return {'OK', text}
