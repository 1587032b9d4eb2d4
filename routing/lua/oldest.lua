-- Returns the first bytes of the oldest Celery message in each queue. They identify the message.
--
-- From -> to: no message changes its state; only reads.
-- KEYS: 1.. queues of consumers.
-- ARGV: number of first bytes, bytes of messages after which no more queues are looked at.
-- Returns: the first bytes for each queue that was looked at, one at least; '' = the queue is empty.
-- Keeps: I9a. Bound: O(queues); bytes: the budget and one message more.

local begun, bytes = {}, 0
for i = 1, #KEYS do
  if bytes >= tonumber(ARGV[2]) then
    break
  end
  local text = redis.call('LINDEX', KEYS[i], -1) or ''
  begun[i] = string.sub(text, 1, tonumber(ARGV[1]))
  bytes = bytes + #text
end
return begun
