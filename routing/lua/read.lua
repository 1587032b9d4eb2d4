-- Reads new entries of the stream for the group, as the leader of the current term only.
--
-- From -> to: UNREAD -> WAITING.
-- KEYS: 1 leader, 2 stream.
-- ARGV: token, group, master, most entries to read, id up to which the group has read ('' = whatever it is).
-- Returns: {'OK', entries ([id, [field, value ...]] ...)}; {'DEPOSED'}: another master leads: nothing was read;
--          {'NOGROUP'}: the group is gone: the caller reads the lane anew;
--          {'CHANGED'}: somebody set the group back or forward: nothing was read, or what is done would be read again,
--          beside what waits; the caller puts the group where it was.
-- Keeps: I2, I8. Bound: O(entries + groups of the stream).

-- A plain blocking XREADGROUP of a master that froze would still take entries when it has long been deposed, and the
-- leader would dispatch the later ones of their tickets first.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'DEPOSED'}
end
if ARGV[5] ~= '' then
  local groups = redis.pcall('XINFO', 'GROUPS', KEYS[2])
  if groups.err then
    return {'NOGROUP'}  -- there is no stream
  end
  for _, told in ipairs(groups) do
    local words = {}
    for i = 1, #told, 2 do
      words[told[i]] = told[i + 1]
    end
    if words['name'] == ARGV[2] and words['last-delivered-id'] ~= ARGV[5] then
      return {'CHANGED'}
    end
  end
end
local reply = redis.pcall('XREADGROUP', 'GROUP', ARGV[2], ARGV[3], 'COUNT', ARGV[4], 'STREAMS', KEYS[2], '>')
if reply and reply.err then
  if string.find(reply.err, 'NOGROUP', 1, true) then
    return {'NOGROUP'}
  end
  return reply
end
return {'OK', reply and reply[1][2] or {}}
