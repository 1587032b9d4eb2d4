-- Why the groups of a stream are not done with it: a code, and the name of the group ('': none reads the stream, and it
-- has entries); nil: they are. CHANGED: `known`, names as keys of a table, does not have this group.
local function not_done_with(stream, known)
  local key = stream
  local groups = redis.pcall('XINFO', 'GROUPS', key)
  local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  if last and (groups.err or #groups == 0) then
    return 'UNREAD', ''
  end
  for _, flat in ipairs(groups.err and {} or groups) do
    local info = {}
    for i = 1, #flat, 2 do
      info[flat[i]] = flat[i + 1]
    end
    local name, read_to = info['name'], info['last-delivered-id']
    if not known[name] then
      return 'CHANGED', name
    end
    if info['pending'] > 0 then
      return 'UNDONE', name
    end
    if last and read_to ~= last[1] and #redis.call('XRANGE', key, '(' .. read_to, '+', 'COUNT', 1) > 0 then
      return 'UNREAD', name
    end
  end
end

-- Whether a key has tickets, or dead letters. An empty stream has none: all were replayed or dropped.
local function holds(key)
  local kind = redis.call('TYPE', key).ok
  return kind ~= 'none' and (kind ~= 'stream' or redis.call('XLEN', key) > 0)
end
