-- Writes the outcomes of messages that an HTTP consumer was given, each only under its current fence.
--
-- From -> to: no message changes its state; the outcomes that this writes are what the leaders settle.
-- KEYS: 1.. of each lane: lease, messages given, messages acknowledged, tickets, outcomes.
-- ARGV: incarnation, how many acknowledged messages are remembered in each lane, number of messages; of each: message
--       id, fence, kind of the outcome, what follows the start time in the outcome (JSON).
-- Returns: a list with a code for each message: 'OK'; 'AGAIN': the same outcome was written before; 'CHANGED': another
--          outcome was written before; 'STALE': the fence is not the current one; 'UNKNOWN': the incarnation was not
--          given this message, or has acknowledged it long ago; 'LATE': a lease is over. Only 'OK' wrote an outcome.
-- It remembers the messages that were acknowledged last, which need not be those with the highest fences.
-- Keeps: I4, I5. Bound: O(messages times lanes + messages given and remembered).

local codes = {}
local over = false
for k = 0, #KEYS - 1, 5 do
  over = over or redis.call('EXISTS', KEYS[k + 1]) == 0
end
local now = redis.call('TIME')
local now_us = now[1] * 1000000 + now[2]
local outcomes = {}

local function find_given(id, fence)
  -- The offset in KEYS of the lane that gave this message under this fence, and the note about it. None: nothing.
  for k = 0, #KEYS - 1, 5 do
    local value = redis.call('HGET', KEYS[k + 2], fence)
    if value and string.sub(value, 1, #id + 1) == id .. ' ' then
      return k, value
    end
  end
end

local deliveries, known

local function read_known()
  -- Reads what is given and remembered, once. What this call acknowledges is in it, too.
  deliveries, known = {}, {}
  for k = 0, #KEYS - 1, 5 do
    for _, one in ipairs(redis.call('ZRANGE', KEYS[k + 3], 0, -1)) do
      local id, fence, kind = string.match(one, '^(%S+) (%S+) (%S+)')
      known[id], deliveries[id .. ' ' .. fence] = true, kind
    end
    for _, value in ipairs(redis.call('HVALS', KEYS[k + 2])) do
      known[string.match(value, '^%S+')] = true
    end
  end
end

local function code_of_unknown(id, fence, kind)
  -- The code for a message that was not given, or is not given any more.
  if not deliveries then
    read_known()
  end
  local as = deliveries[id .. ' ' .. fence]
  if as then
    return as == kind and 'AGAIN' or 'CHANGED'
  end
  return known[id] and 'STALE' or 'UNKNOWN'
end

for m = 1, tonumber(ARGV[3]) do
  local at = 4 * m
  local id, fence, kind, rest = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local k, value = nil, nil
  if not over then
    k, value = find_given(id, fence)
  end
  if over then
    codes[m] = 'LATE'
  elseif not k then
    codes[m] = code_of_unknown(id, fence, kind)
  else
    local head, given_us, length = string.match(value, '^(%S+ (%d+) (%d+) )')
    local ticket = string.sub(value, #head + 1, #head + length)
    local record = redis.call('HGET', KEYS[k + 4], ticket)
    -- First: a full server accepts all writes of a script if the first needs no memory.
    redis.call('HDEL', KEYS[k + 2], fence)
    if string.match(record or '', '^%[(%d+),') ~= fence then
      codes[m] = 'STALE'
    else
      outcomes[k] = outcomes[k] or {}
      local service_ms = math.max(0, now_us - tonumber(given_us)) / 1000
      local started = string.match(id, '^[^@]*') .. '",' .. fence .. ',"' .. kind .. '",'
      table.insert(outcomes[k], '["' .. started .. string.format('%.3f', service_ms) .. ',' .. given_us .. rest .. ']')
      redis.call('ZADD', KEYS[k + 3], now_us, id .. ' ' .. fence .. ' ' .. kind)
      if deliveries then
        known[id], deliveries[id .. ' ' .. fence] = true, kind
      end
      codes[m] = 'OK'
    end
  end
end
for k, some in pairs(outcomes) do
  redis.call('XADD', KEYS[k + 5], '*', 'i', ARGV[1], 'o', '[' .. table.concat(some, ',') .. ']')
  redis.call('ZREMRANGEBYRANK', KEYS[k + 3], 0, -1 - tonumber(ARGV[2]))
  redis.call('PEXPIRE', KEYS[k + 3], redis.call('PTTL', KEYS[k + 1]))
end
return codes
