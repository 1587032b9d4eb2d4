-- Ends the leadership of a master that stops, so that a standby need not wait until the leader lease ends.
--
-- From -> to: leads -> no master leads. KEYS: 1 leader. ARGV: token.
-- Returns: 'OK'; 'DEPOSED': it did not lead any more. Bound: O(1). Keeps: I8.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
redis.call('DEL', KEYS[1])
return 'OK'
