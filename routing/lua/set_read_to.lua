-- Sets the position of a group that was made again, after all undone entries before that position are pending again.
--
-- From -> to: no message changes its state: the caller has made pending what is undone.
-- KEYS: 1 leader, 2 stream. ARGV: token, group, id up to which the group has read.
-- Returns: 'OK'; 'DEPOSED': the caller does not lead any more; nothing was changed. Keeps: I1, I8. Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
redis.call('XDEL', KEYS[2], '0-0')  -- a full server accepts all writes of a script if the first needs no memory
redis.call('XGROUP', 'SETID', KEYS[2], ARGV[2], ARGV[3])
return 'OK'
