-- Notes the floor: all entries up to it are done or dead. Counts that the pending list agreed with the picture.
--
-- From -> to: no message changes its state.
-- KEYS: 1 leader, 2 floor (for when the group is destroyed), 3 agreed (for the leaders of other lanes, which wait).
-- ARGV: token, id ('' = the floor stays), whether the pending list agreed and that is to be counted (1 | 0).
-- Returns: 'OK'; 'DEPOSED': the caller does not lead any more; nothing was changed. Keeps: I1, I8. Bound: O(1).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'DEPOSED'
end
local id = ARGV[2] ~= '' and ARGV[2] or redis.call('GET', KEYS[2])
redis.call('DEL', KEYS[2])  -- a full server accepts all writes of a script if the first needs no memory
if id then
  redis.call('SET', KEYS[2], id)
end
if ARGV[3] == '1' then
  if type(redis.pcall('INCR', KEYS[3])) ~= 'number' then
    redis.call('SET', KEYS[3], 1)  -- written by hand: it begins again
  end
end
return 'OK'
