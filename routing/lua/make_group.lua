-- Makes a consumer group, and its stream if there is none, unless nobody shall read the stream any more.
--
-- From -> to: the messages after the position are UNREAD in a lane more.
-- KEYS: 1 stream, 2 layout of the whole stream (`bridge.routing.keys.layout_key`).
-- ARGV: group, id after which it reads, the generation of the lane's partition.
-- Returns: {'OK'}; {'HELD'}: there is such a group; {'LAYOUT'}: the stream was retired, or has left this partition.
-- Keeps: I9: a stream that was deleted is not made again by a master or a command that did not see it go. Bound: O(1).

-- shared: is_left

if is_left(KEYS[2], ARGV[3]) then
  return {'LAYOUT'}
end
redis.pcall('XDEL', KEYS[1], '0-0')  -- a full server accepts all writes of a script if the first needs no memory
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2], 'MKSTREAM')
if made.err and string.find(made.err, '^BUSYGROUP ') then
  return {'HELD'}
end
return made.err and made or {'OK'}
