-- Notes that one partition of a write waits, and why; or that it does not wait any more.
--
-- From -> to: no message changes its state.
-- KEYS: 1 notes of the stream (`bridge.routing.keys.push_waiting`).
-- ARGV: the writer, why it waits ('' = it goes on), waiting for how long now (ms), life of the notes (s).
-- Returns: 'OK'. Keeps: I9: the notes expire. Bound: O(1).

-- HDEL first: a full server accepts all writes of a script if the first needs no memory. The note is
-- about that full server.
redis.call('HDEL', KEYS[1], ARGV[1])
if ARGV[2] ~= '' then
  local now = redis.call('TIME')
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now[1] * 1000) .. ' ' .. ARGV[3] .. ' ' .. ARGV[2])
  redis.call('EXPIRE', KEYS[1], ARGV[4])
end
return 'OK'
