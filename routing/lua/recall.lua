-- Takes Celery messages back from the queue of a consumer that does not take them, or must not get them.
--
-- From -> to: no message changes its state; the caller settles what it gets as given back. When it dies first, the runs
--             are missed by anti-entropy, and go out again.
-- KEYS: 1 leader, 2 queue of the consumer.
-- ARGV: token, most messages to take, bytes after which no more are taken.
-- Returns: {'OK', texts, the oldest first: none, when the queue is empty}; {'DEPOSED'}: the caller does not lead any
--          more; nothing was taken.
-- Keeps: I8; I2: what was taken from the queue, the worker can never get; I9a. Bound: O(messages taken).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end
local texts, bytes = {}, 0
while #texts < tonumber(ARGV[2]) and bytes < tonumber(ARGV[3]) do
  local text = redis.call('RPOP', KEYS[2])
  if not text then
    break
  end
  texts[#texts + 1] = text
  bytes = bytes + #text
end
return {'OK', texts}
