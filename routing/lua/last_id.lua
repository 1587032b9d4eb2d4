-- Returns the newest id that the stream ever gave out, without the entries that the server would send with it.
--
-- From -> to: no message changes its state; only reads.
-- KEYS: 1 stream. ARGV: none.
-- Returns: the id; '0-0': there was no entry yet, or there is no stream.
-- Keeps: I1 (a group must not stand beyond it: the next entries would never be read), I9a. Bound: O(1); bytes: the
--        first and the last entry of the stream.

local info = redis.pcall('XINFO', 'STREAM', KEYS[1])
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then
    return info[i + 1]
  end
end
return '0-0'
