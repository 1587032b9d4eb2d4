-- Renews the leases of an HTTP consumer, reports what it holds, and says whether messages are still its own.
--
-- From -> to: no message changes its state.
-- KEYS: the copies of the record of the incarnation; of each lane: lease, held, messages given, messages acknowledged,
--       drains, tickets, consumers.
-- ARGV: consumer, incarnation, lease (ms), lifetime of the record (ms), number of its copies; of each message that the
--       caller asks about: message id, fence.
-- Returns: {'OK', Unix ms, the drain order of each lane ('' = none), of each message: 1: it is the consumer's, 0: it is
--          not the current one, or was not given}; {'LATE'}: a lease is over, or the incarnation is not registered any
--          more, so that its leases will be over: nothing was renewed.
-- Keeps: I5: a lease that ended is never revived. Where somebody deleted the registration, the name may be registered
--        again at once: two incarnations must not hold leases for longer than what the first one has left.
-- Bound: O(lanes + unacknowledged messages).

local copies = tonumber(ARGV[5])
for k = copies, #KEYS - 1, 7 do
  local registered = redis.call('HGET', KEYS[k + 7], ARGV[1]) or ''
  if redis.call('EXISTS', KEYS[k + 1]) == 0 or not string.find(registered, ARGV[2], 1, true) then
    return {'LATE'}
  end
end
local now = redis.call('TIME')
local now_us = now[1] .. string.format('%06d', now[2])
local drains, own = {}, {}
for k = 1, copies do
  redis.call('PEXPIRE', KEYS[k], ARGV[4])
end
for k = copies, #KEYS - 1, 7 do
  redis.call('PEXPIRE', KEYS[k + 1], ARGV[3])
  redis.call('PEXPIRE', KEYS[k + 3], ARGV[3])
  redis.call('PEXPIRE', KEYS[k + 4], ARGV[3])
  local fences = table.concat(redis.call('HKEYS', KEYS[k + 3]), ',')
  redis.call('SET', KEYS[k + 2], '{"n":' .. now_us .. ',"fences":[' .. fences .. ']}', 'PX', ARGV[3])
  drains[#drains + 1] = redis.call('HGET', KEYS[k + 5], ARGV[1]) or ''
end
for at = 6, #ARGV, 2 do
  local id, fence, is_own = ARGV[at], ARGV[at + 1], 0
  for k = copies, #KEYS - 1, 7 do
    local value = redis.call('HGET', KEYS[k + 3], fence)
    local known, length = string.match(value or '', '^(%S+) %S+ (%d+) ')
    if known == id then
      local head = string.match(value, '^%S+ %S+ %d+ ')
      local record = redis.call('HGET', KEYS[k + 6], string.sub(value, #head + 1, #head + length))
      is_own = string.match(record or '', '^%[(%d+),') == fence and 1 or 0
    end
  end
  own[#own + 1] = is_own
end
return {'OK', math.floor(now[1] * 1000 + now[2] / 1000), drains, own}
