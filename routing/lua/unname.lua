-- Removes a name that has nothing pending from the group: that of a ticket that was parked.
--
-- From -> to: no message changes its state. KEYS: 1 leader, 2 stream. ARGV: token, group, name.
-- Returns: 'OK', also when something is pending under the name, and it stays; 'DEPOSED': nothing was changed.
-- Keeps: I1, I8, I9. Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
redis.call('XDEL', KEYS[2], '0-1')  -- a full server lets a script go on that began with a write which needs no memory
if #redis.call('XPENDING', KEYS[2], ARGV[2], '-', '+', 1, ARGV[3]) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', KEYS[2], ARGV[2], ARGV[3])
end
return 'OK'
