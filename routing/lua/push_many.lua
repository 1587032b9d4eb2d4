-- Appends messages of one task in their order, all of them or none.
--
-- From -> to: nothing -> UNREAD, for each message.
-- KEYS: 1 stream.
-- ARGV: task; then ticket and payload of each message.
-- Returns: {'OK', ids of the messages, in their order, in one text, which a caller reads faster than a list}.
-- Keeps: promise 1, for producers: a server that is full, or forbids the user XADD, refuses the first message and so
--        all of them. Sent one by one, a message could be refused and a later one of its ticket be taken.
-- Bound: O(messages), which the caller keeps to 500 and 1 MiB, or one message that is larger.

local call, stream, task = redis.call, KEYS[1], ARGV[1]
local ids = {}
for i = 2, #ARGV, 2 do
  ids[i / 2] = call('XADD', stream, '*', 'ticket_id', ARGV[i], 'task', task, 'payload', ARGV[i + 1])
end
return {'OK', table.concat(ids, ' ')}
