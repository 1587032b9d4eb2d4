-- Takes Celery messages back from the queue of a consumer that does not take them, or shall not.
--
-- From -> to: no message changes its state; the caller settles what it gets as given back. When it dies first, the runs
--             are missed by anti-entropy, and go out again.
-- KEYS: 1 leader, 2 queue of the consumer.
-- ARGV: token, most messages to take.
-- Returns: {'OK', texts, the oldest first}; {'DEPOSED'}: the caller leads no more; nothing was taken.
-- Keeps: I8; I2: what was taken from the queue, the worker can never get. Bound: O(messages taken).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end
return {'OK', redis.call('RPOP', KEYS[2], ARGV[2]) or {}}
