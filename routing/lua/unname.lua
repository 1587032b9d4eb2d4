-- Removes the name of a released ticket from the group, if it has no pending entries.
--
-- From -> to: no message changes its state. KEYS: 1 leader, 2 stream. ARGV: token, group, name.
-- Returns: 'OK', also when the name has pending entries and stays; 'DEPOSED': nothing was changed.
-- Keeps: I1, I8, I9. Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
redis.call('XDEL', KEYS[2], '0-0')  -- a full server accepts all writes of a script if the first needs no memory
if #redis.call('XPENDING', KEYS[2], ARGV[2], '-', '+', 1, ARGV[3]) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', KEYS[2], ARGV[2], ARGV[3])
end
return 'OK'
