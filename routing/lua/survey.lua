-- Lists the ids and tickets of the entries of a part of the stream, without their other fields.
--
-- From -> to: no message changes its state; only reads.
-- KEYS: 1 stream.
-- ARGV: id to begin at ('(' before it: after it), last id to name, most entries to name, bytes after which no more are
--       read, most bytes of a ticket.
-- Returns: {ids and tickets by turns ('' = no valid ticket), whether there may be more (1 | 0)}.
-- Keeps: I1 (the caller makes entries pending again, and needs their tickets), I9a. Bound: O(entries); bytes: the
--        budget and one step more.

-- A caller must not get gigabytes for a list of ids. The size of an entry is known only after it was read: so this
-- reads one entry first, and few at a time.
local STEP = 16
local from, most, budget = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local named, bytes, step = {}, 0, 1
while #named < most * 2 and bytes < budget do
  local entries = redis.call('XRANGE', KEYS[1], from, ARGV[2], 'COUNT', step)
  local peak = 1
  for _, entry in ipairs(entries) do
    local fields, ticket, size = entry[2], '', 0
    for i = 1, #fields, 2 do
      size = size + #fields[i] + #fields[i + 1]
      if fields[i] == 'ticket_id' then
        ticket = fields[i + 1]
      end
    end
    named[#named + 1] = entry[1]
    named[#named + 1] = #ticket <= tonumber(ARGV[5]) and ticket or ''
    bytes = bytes + size
    peak = math.max(peak, size)
  end
  if #entries < step or named[#named - 1] == ARGV[2] then
    return {named, 0}  -- the server refuses a range after the largest possible id
  end
  from = '(' .. named[#named - 1]
  step = math.max(1, math.min(most - #named / 2, STEP, step * 2, math.floor((budget - bytes) / peak)))
end
return {named, 1}
