-- Appends messages of one task in their order. If the same call was carried out before, only returns their ids.
--
-- From -> to: nothing -> UNREAD, for each message, the first time.
-- KEYS: 1 stream, 2 the ids that were pushed under the idempotency key (`bridge.routing.keys.push_once`).
-- ARGV: number of the first message among all of the push, digest of the messages, life of the note (s), task; then
--       ticket and payload of each message.
-- Returns: {'OK', ids of the messages, in their order}; {'CHANGED'}: other messages were pushed under this key; nothing
--          was changed.
-- Keeps: promise 4, for producers: each message once, for any number of attempts. I9: the note expires.
-- A full server refuses the first HSET and so all of it: a message without its note would be appended again.
-- Bound: O(messages), which the caller keeps to 500 and 1 MiB, or one message that is larger.

local noted = redis.call('HGET', KEYS[2], ARGV[1])
if noted and noted ~= '' then
  local digest, ids = noted:match('^(%x+) (.*)$')
  if digest ~= ARGV[2] then
    return {'CHANGED'}
  end
  return {'OK', ids}
end
redis.call('HSET', KEYS[2], ARGV[1], '')
redis.call('EXPIRE', KEYS[2], ARGV[3])
local call, stream, task = redis.call, KEYS[1], ARGV[4]
local ids = {}
for i = 5, #ARGV, 2 do
  ids[#ids + 1] = call('XADD', stream, '*', 'ticket_id', ARGV[i], 'task', task, 'payload', ARGV[i + 1])
end
local text = table.concat(ids, ' ')
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. ' ' .. text)
return {'OK', text}
