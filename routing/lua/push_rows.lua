-- Appends rows of any fields in their order, each by itself, if the stream has the layout that the caller knows.
--
-- From -> to: nothing -> UNREAD, for each row.
-- KEYS: 1 layout (`bridge.routing.keys.layout_key`), 2.. the streams of the rows.
-- ARGV: layout that the caller knows ('' = none is stored), for each row the number of its stream from 0, in two bytes
--       ('' = one stream for all), the first partition that the stream would have, and the key of the copy of a layout
--       (both '' = a layout is known); then for each row: the number of its words, and its words, fields and values in
--       turn.
-- Returns: {'OK', id or error of each row ...}; {'LAYOUT', layout}: another layout is stored, and nothing was added:
--          the caller goes by that one.
-- Keeps: promise 1, for producers: all of them put a ticket's messages into the same stream, also in the moment in
--        which its layout changes.
-- Bound: O(rows), which the caller keeps to 500 and 1 MiB, or one row that is larger.

-- shared: is_lost

local layout = redis.pcall('GET', KEYS[1]) or ''
if layout ~= ARGV[1] or layout == '' and is_lost(KEYS[2], ARGV[3], ARGV[4]) then
  return {'LAYOUT', layout.err or layout}
end
local numbers, replies = ARGV[2], {}
local at, row = 5, 0
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  local number = numbers == '' and 0 or numbers:byte(2 * row + 1) * 256 + numbers:byte(2 * row + 2)
  row = row + 1
  replies[row] = redis.pcall('XADD', KEYS[2 + number], '*', unpack(ARGV, at + 1, at + words))
  at = at + 1 + words
end
return {'OK', unpack(replies)}
