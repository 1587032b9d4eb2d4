-- Deletes what is stored of schedule entries that the app does not have any more.
--
-- From -> to: no message changes its state.
-- KEYS: 1 schedule (`bridge.routing.keys.schedule_key`), then the leaders of lanes, the last of them that of the
--       caller's lane.
-- ARGV: token, then fields.
-- Returns: {'OK', number of deleted fields}; {'OTHER'}: a lane before the caller's has a leader; {'DEPOSED'}: the
--          caller does not lead its lane any more. Nothing was changed then.
-- Keeps: I8, I9. Bound: O(fields), and O(lanes before the caller's).

for i = 2, #KEYS - 1 do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    return {'OTHER'}
  end
end
local own = #KEYS
if redis.call('GET', KEYS[own]) ~= ARGV[1] then
  return {'DEPOSED'}
end
local deleted = 0
for i = 2, #ARGV do
  deleted = deleted + redis.call('HDEL', KEYS[1], ARGV[i])
end
return {'OK', deleted}
