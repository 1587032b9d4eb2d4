-- Notes which older versions of a stream its lanes follow, only for the leader of one of its lanes.
--
-- From -> to: no message changes its state.
-- KEYS: 1 leader, 2 follows of the stream, 3 newer versions of the stream, 4.. those of each older version.
-- ARGV: token, the stream, its older versions as JSON, their names ...
-- Returns: {'OK'}; {'DEPOSED'}: another master leads: nothing was changed; {'CIRCLE', name}: this older version follows
--          the stream: nothing was changed; the caller stops.
-- Keeps: I8. Bound: O(older versions).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end
for i = 4, #ARGV do
  if redis.call('SISMEMBER', KEYS[3], ARGV[i]) == 1 then
    return {'CIRCLE', ARGV[i]}
  end
end
redis.call('DEL', KEYS[2])  -- a full server lets a script continue whose first write needs no memory
redis.call('SET', KEYS[2], ARGV[3])
for i = 4, #KEYS do
  redis.call('SADD', KEYS[i], ARGV[2])
end
return {'OK'}
