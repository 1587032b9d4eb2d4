-- Reads the layout of a stream. Stores the caller's, if there is neither a layout nor a stream of one partition.
--
-- From -> to: no state of a message changes.
-- KEYS: 1 layout (`bridge.routing.keys.layout_key`), 2 the stream as it is with one partition; only with
--       a layout to store.
-- ARGV: layout to store ('' = none).
-- Returns: the stored layout as text; '': none is stored, the stream has one partition.
-- Keeps: promise 1, across producers: all of them put a ticket's messages into the same stream. I9: one key for a
--        stream, which lives as long as the stream.
-- Bound: O(1).

local stored = redis.call('GET', KEYS[1])
if stored then
  return stored
end
if ARGV[1] == '' or redis.call('EXISTS', KEYS[2]) == 1 then
  return ''
end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
