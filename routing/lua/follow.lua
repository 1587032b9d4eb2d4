-- Notes which older versions of a stream its lanes follow, and where states are kept, only for the leader of a lane.
--
-- From -> to: no message changes its state.
-- KEYS: 1 leader, 2 follows of the stream, 3 newer versions of the stream, 4 state-home of the stream, 5 that of its
--       oldest version, which a stream keeps that has none of its own, 6.. newer versions of each older version.
-- ARGV: token, the stream, its older versions as JSON, the oldest version ('': its states stay where they are), what
--       the key of the follows of a stream is, with %s for the stream, the names of the older versions ...
-- Returns: {'OK'}; {'DEPOSED'}: another master leads: nothing was changed; {'CIRCLE', name}: this older version follows
--          the stream, itself or over others: nothing was changed; the caller stops.
-- Keeps: I8. Bound: O(older versions, and what they follow).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end
local seen = {}
local function follows_it(name)
  if name == ARGV[2] then
    return true
  elseif seen[name] then
    return false
  end
  seen[name] = true
  local key = ARGV[5]:format(name)
  -- Of a version that the app does not name, the user may know nothing.
  local text = redis.pcall('GET', key)
  for _, older in ipairs(type(text) == 'string' and cjson.decode(text) or {}) do
    if follows_it(older) then
      return true
    end
  end
  return false
end
for i = 6, #ARGV do
  if redis.call('SISMEMBER', KEYS[3], ARGV[i]) == 1 or follows_it(ARGV[i]) then
    return {'CIRCLE', ARGV[i]}
  end
end
redis.call('DEL', KEYS[2])  -- a full server accepts all writes of a script if the first needs no memory
redis.call('SET', KEYS[2], ARGV[3])
for i = 6, #KEYS do
  redis.call('SADD', KEYS[i], ARGV[2])
end
if ARGV[4] ~= '' then
  redis.call('SET', KEYS[4], redis.call('GET', KEYS[5]) or ARGV[4], 'NX')
end
return {'OK'}
