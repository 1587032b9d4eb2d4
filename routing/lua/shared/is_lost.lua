-- Whether a stream without a stored layout has one that was lost: its copy is there, or its first partition is, and no
-- group reads the stream. A user who may not look at these keys is served as if they were not there.
local function is_lost(stream, partition, copy)
  local key = copy
  local copied = redis.pcall('EXISTS', key)
  key = partition
  if copied == 1 or redis.pcall('EXISTS', key) ~= 1 then
    return copied == 1
  end
  key = stream
  if redis.pcall('EXISTS', key) == 0 then
    return true
  end
  local groups = redis.pcall('XINFO', 'GROUPS', key)
  return not groups.err and #groups == 0
end
