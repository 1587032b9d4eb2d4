-- Gives an HTTP consumer the messages that it was given before and has not acknowledged, and new ones of its queues.
--
-- From -> to: no message changes its state: it is in flight since its dispatch. A copy of a message that the consumer
--             has had is dropped. What the consumer must not get is given back: IN_FLIGHT -> WAITING, by its leader;
--             or it has expired before it began: IN_FLIGHT -> DEAD, by its leader.
-- KEYS: 1.. of each lane: lease, queue, messages given, messages acknowledged, tickets, outcomes.
-- ARGV: incarnation, most messages to return, most unacknowledged messages, bytes after which no more are returned,
--       number of the lane whose queue is first (from 0), fences ... of messages that the consumer has.
-- Returns: {'OK', ms until the first lease ends, Unix ms, list with of each message: the number of its lane (from 0),
--          its Celery message}; {'LATE'}: a lease is over: nothing was changed.
-- Keeps: I5, I2: a message is given only while the leases hold, and as often as it is asked for only to the same
--        incarnation; I9a. Bound: O(lanes + unacknowledged messages + messages taken from the queues).

local lanes, incarnation = #KEYS / 6, ARGV[1]
local left
for k = 0, #KEYS - 1, 6 do
  local ms = redis.call('PTTL', KEYS[k + 1])
  if ms <= 0 then
    return {'LATE'}
  end
  left = math.min(left or ms, ms)
end
local now = redis.call('TIME')
local now_us = now[1] .. string.format('%06d', now[2])
local now_ms = math.floor(now[1] * 1000 + now[2] / 1000)
local most, slots, bytes = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local has = {}
for i = 6, #ARGV do
  has[ARGV[i]] = true
end
local messages, found, size, unacknowledged = {}, 0, 0, 0

local function add(k, text)
  messages[#messages + 1] = k / 6
  messages[#messages + 1] = text
  found, size = found + 1, size + #text
end

local function full()
  return found >= most or (found > 0 and size >= bytes)
end

local function is_current(k, ticket, fence)
  return string.match(redis.call('HGET', KEYS[k + 5], ticket) or '', '^%[(%d+),') == fence
end

for k = 0, #KEYS - 1, 6 do
  local fences = redis.call('HKEYS', KEYS[k + 3])
  unacknowledged = unacknowledged + #fences
  table.sort(fences)  -- all have as many digits
  for _, fence in ipairs(fences) do
    if not has[fence] and not full() then
      local value = redis.call('HGET', KEYS[k + 3], fence)
      local head, length = string.match(value, '^(%S+ %S+ (%d+) )')
      local ticket = string.sub(value, #head + 1, #head + length)
      if is_current(k, ticket, fence) then
        add(k, string.sub(value, #head + length + 1))
      else
        -- It was acknowledged in the stream by hand, or settled in another way.
        redis.call('HDEL', KEYS[k + 3], fence)
        unacknowledged = unacknowledged - 1
      end
    end
  end
end

local function was_acknowledged(k, id, fence)
  -- As one of the kinds that an HTTP consumer sends.
  local as = id .. ' ' .. fence .. ' '
  local times = redis.call('ZMSCORE', KEYS[k + 4], as .. 'S', as .. 'F', as .. 'N', as .. 'D')
  return times[1] or times[2] or times[3] or times[4]
end

local function settle(k, outcomes)
  redis.call('XADD', KEYS[k + 6], '*', 'i', incarnation, 'o', '[' .. table.concat(outcomes, ',') .. ']')
end

local function returned(id, fence)
  return '["' .. string.match(id, '^[^@]*') .. '",' .. fence .. ',"B",0,0]'
end

local function take(k, text)
  -- Takes one Celery message, which is not in the queue any more. Returns whether others may be taken after it.
  local is_json, message = pcall(cjson.decode, text)
  local headers = is_json and message.headers or {}
  if headers.bridge_incarnation ~= incarnation or headers.bridge_word then
    return true  -- a request of the leader: that it leaves the queue is the answer
  end
  local base = headers.bridge_fence
  if headers.task == 'bridge.bundle' then
    -- A leader of an older version does not know HTTP consumers.
    local is_list, runs = pcall(cjson.decode, message.body)
    local outcomes = {}
    for _, run in ipairs(is_list and runs or {}) do
      outcomes[#outcomes + 1] = returned(run[4][1][1], string.format('%.0f', base + run[2]))
    end
    if #outcomes > 0 then
      settle(k, outcomes)
    end
    return true
  end
  local run = headers.bridge_runs[1]
  local fence = string.format('%.0f', base + run[2])
  if redis.call('HEXISTS', KEYS[k + 3], fence) == 1 or was_acknowledged(k, headers.id, fence) then
    return true  -- the leader has sent it again, since it seemed to be lost
  end
  local own = headers.bridge_own
  local expires = type(own) == 'table' and tonumber(own[3])  -- null: it was begun before
  if expires and expires <= now_ms then
    -- As a worker does it (`bridge.routing.message_options.EXPIRED`).
    local dead = string.match(headers.id, '^[^@]*') .. '",' .. fence .. ',"D",0,0'
    settle(k, {'["' .. dead .. ',"expired before it began","",null]'})
    return true
  end
  if headers.bridge_alone and unacknowledged > 0 then
    settle(k, {returned(headers.id, fence)})
    return true
  end
  local ticket = run[1]
  redis.call('HSET', KEYS[k + 3], fence, headers.id .. ' ' .. now_us .. ' ' .. #ticket .. ' ' .. ticket .. text)
  unacknowledged = unacknowledged + 1
  add(k, text)
  return not headers.bridge_alone
end

local goes_on = true
for i = 0, lanes - 1 do
  local k = (tonumber(ARGV[5]) + i) % lanes * 6
  local took = false
  while goes_on and unacknowledged < slots and not full() do
    local text = redis.call('RPOP', KEYS[k + 2])
    if not text then
      break
    end
    goes_on, took = take(k, text), true
  end
  if took then
    redis.call('PEXPIRE', KEYS[k + 3], left)
  end
end
return {'OK', left, now_ms, messages}
