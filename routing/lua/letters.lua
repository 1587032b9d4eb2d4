-- Lists the ids of messages that have a dead letter, without the contents of the letters.
--
-- From -> to: no message changes its state; only reads.
-- KEYS: 1 dead letters. ARGV: letter to begin after ('' = the first one), most letters to look at.
-- Returns: {ids of messages, the last letter looked at ('' = there was none), number of letters looked at}.
--          A letter that was written by hand may have no message, or several.
-- Keeps: I1 (entries that may be replayed are not removed). Bound: O(letters looked at, and their size).

local page = redis.call('XRANGE', KEYS[1], ARGV[1] == '' and '-' or '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
local ids = {}
for _, letter in ipairs(page) do
  for i = 1, #letter[2], 2 do
    if letter[2][i] == 'message_id' then
      ids[#ids + 1] = letter[2][i + 1]
    end
  end
end
return {ids, #page > 0 and page[#page][1] or '', #page}
