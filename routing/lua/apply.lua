-- Applies the effects of messages that succeeded and writes their outcomes, in one step, each only under its fence.
--
-- From -> to: no message changes its state; the outcomes that this writes are what the leader settles.
-- KEYS: 1 tickets, 2 applied, 3 outcomes, 4.. the keys that the effects touch.
-- ARGV: incarnation, number of messages; of each: ticket, fence, outcome (JSON), number of effects; of each effect:
--       type of the key ('' = any), check ('' | 'int' | 'float': the increment is the last word), number of words,
--       words.
-- Returns: a list with a word for each message: 'OK'; 'AGAIN': applied before, by a lost reply of this same call;
--          'STALE': the fence is not the current one, nothing was changed; 'ERR ...': an effect cannot be applied, none
--          was.
-- Keeps: promise 4, I4. Effects are checked before the first is applied, since Redis has no rollback: types and numbers
--        here; their words, and what the effects of one message do to each other, by whoever records them.
-- Bound: O(effects).

-- A full server refuses what needs memory until a script has written; deleting nothing lets the rest pass. Otherwise a
-- lane whose tasks all have effects would hang on a full server, with everything done and nothing acknowledged.
redis.call('XDEL', KEYS[3], '0-1')

local at = 2
local words, accepted = {}, {}

local function number(text, check)
  -- The number in the text, if Redis reads it as one, too: Lua's tonumber takes more.
  if text == '0' or string.match(text, '^%-?[1-9]%d*$') then
    return tonumber(text)
  end
  if check == 'float'
    and (string.match(text, '^%-?%d+%.?%d*$') or string.match(text, '^%-?%d+%.?%d*[eE][-+]?%d+$')) then
    return tonumber(text)
  end
end

local function problem(kind, check, first, last)
  local command, key = string.upper(ARGV[first]), ARGV[first + 1]
  if kind ~= '' then
    local found = redis.call('TYPE', key).ok
    if found ~= 'none' and found ~= kind then
      return command .. ': the key holds a ' .. found .. ', not a ' .. kind
    end
  end
  if check ~= '' then
    local value
    if kind == 'hash' then
      value = redis.call('HGET', key, ARGV[first + 2])
    else
      value = redis.call('GET', key)
    end
    local sum = number(value or '0', check)
    local by = last == first + 1 and 1 or number(ARGV[last], check)
    if not sum or not by then
      return command .. ': the ' .. (sum and 'increment' or 'value') .. ' is not a number'
    end
    if math.abs(sum) + math.abs(by) > 9007199254740991 then
      return command .. ': the number would be too large'
    end
  end
end

for m = 1, tonumber(ARGV[2]) do
  local ticket, fence, outcome, effects = ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3], tonumber(ARGV[at + 4])
  at = at + 4
  local calls = {}
  local err
  local record = redis.call('HGET', KEYS[1], ticket)
  local base, count = string.match(record or '', '^%[(%d+),(%d+),')
  base = tonumber(base or '0')
  local done = tonumber(redis.call('HGET', KEYS[2], ticket) or '0')
  local current = base > 0 and fence >= base and fence < base + tonumber(count)
  for e = 1, effects do
    local n = tonumber(ARGV[at + 3])
    if current and not err then
      err = problem(ARGV[at + 1], ARGV[at + 2], at + 4, at + 3 + n)
    end
    calls[e] = {at + 4, at + 3 + n}
    at = at + 3 + n
  end
  if not current then
    words[m] = 'STALE'
  elseif fence <= done then
    words[m] = fence == done and 'AGAIN' or 'STALE'
  elseif err then
    words[m] = 'ERR ' .. err
  else
    for _, span in ipairs(calls) do
      redis.call(unpack(ARGV, span[1], span[2]))
    end
    redis.call('HSET', KEYS[2], ticket, string.format('%.0f', fence))
    accepted[#accepted + 1] = outcome
    words[m] = 'OK'
  end
end
if #accepted > 0 then
  redis.call('XADD', KEYS[3], '*', 'i', ARGV[1], 'o', '[' .. table.concat(accepted, ',') .. ']')
end
return words
