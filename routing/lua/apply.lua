-- Applies the effects of messages that succeeded and writes their outcomes, in one step, each only under its fence.
--
-- From -> to: no message changes its state; the outcomes that this writes are what the leader settles.
-- KEYS: 1 tickets, 2 applied, 3 outcomes, 4 a key that never exists. The keys that the effects touch
--       are not among them. Otherwise the server would refuse the whole call when its user may not touch one key, and
--       all messages of the call would fail.
-- ARGV: incarnation, number of messages, their tickets ...; of each message: fence, outcome (JSON), number of effects;
--       of each effect: type of the key ('' = any), check ('' | 'int' | 'float': the increment is the last argument |
--       'gone': it is applied only if there was no such key before this message), number of arguments, arguments.
-- Returns: an empty list: all are 'OK'; else a list with a code for each message: 'OK'; 'AGAIN': applied before, by
--          this same call, whose reply was lost; 'STALE': the fence is not the current one, nothing was changed;
--          'ERR ...': an effect cannot be applied, and none was.
-- Keeps: promise 4, I4. Effects are checked before the first is applied, because Redis has no rollback. Permissions,
--        types, numbers, lengths of strings and ends of streams are checked here. Arguments, and effects of one message
--        on each other, are checked when the task records them.
-- Bound: O(effects); bytes: of a stream that an effect adds to, where there are several, the first and the last entry.

-- A full server refuses commands that need memory until the script has written. A deletion of nothing is such a write.
-- Without it, a lane whose tasks have effects would stop on a full server: all done, and nothing acknowledged.
redis.call('XDEL', KEYS[3], '0-0')
-- The outcomes are added last. If the server refused that, the effects would be applied without their outcomes. So this
-- asks first, with a command that adds nothing.
redis.call('XADD', KEYS[4], 'NOMKSTREAM', '*', '', '')

local codes, accepted = {}, {}
local CHUNK = 1000  -- below Lua's limit on unpacked values; even: pairs stay together

local function number(text, check)
  -- The number in the text, if Redis accepts it as well: Lua's tonumber accepts more.
  if #text > 255 then
    return nil
  end
  if text == '0' or string.match(text, '^%-?[1-9]%d*$') then
    return tonumber(text)
  end
  if check == 'float'
    and (string.match(text, '^%-?%d+%.?%d*$') or string.match(text, '^%-?%d+%.?%d*[eE][-+]?%d+$')) then
    return tonumber(text)
  end
end

-- Before 7.0 a script cannot ask whether a command is permitted. So it calls the command in a way that changes nothing:
-- on the tickets, an existing hash. A command without a line here is for another type, and fails. The error shows
-- whether the command is permitted.
local HARMLESS = not redis.acl_check_cmd and {
  SET = {'SET', KEYS[1], '', 'NO OPTION'},
  SETEX = {'SETEX', KEYS[1], 'NO NUMBER', ''},
  PSETEX = {'PSETEX', KEYS[1], 'NO NUMBER', ''},
  SETNX = {'SETNX', KEYS[1], ''},
  MSET = {'MSET', KEYS[1], '', KEYS[1]},
  EXPIRE = {'EXPIRE', KEYS[1], 'NO NUMBER'},
  PEXPIRE = {'PEXPIRE', KEYS[1], 'NO NUMBER'},
  PERSIST = {'PERSIST', KEYS[1]},
  HDEL = {'HDEL', KEYS[1], ''},
  DEL = {'DEL', KEYS[4]},
  UNLINK = {'UNLINK', KEYS[4]},
}
local tried = {}

local function denied(reply)
  return type(reply) == 'table' and reply.err ~= nil
    and (string.find(reply.err, 'The user executing the script', 1, true)
      or string.find(reply.err, 'Unknown Redis command', 1, true)) ~= nil  -- renamed away
end

local function may_call(command, ticket, first, last)
  if command == 'PUBLISH' then
    return true  -- before 7.0 a channel cannot be tried: see `applied` below
  end
  if tried[command] == nil then
    local arguments = HARMLESS[command]
    if command == 'HSET' then
      arguments = {command, KEYS[1], ticket, redis.call('HGET', KEYS[1], ticket)}
    elseif command == 'HSETNX' or command == 'HINCRBY' or command == 'HINCRBYFLOAT' then
      arguments = {command, KEYS[1], ticket, '1'}  -- a record exists, and is not a number
    elseif not arguments then
      arguments = {command, KEYS[1], unpack(ARGV, first + 2, last)}
    end
    tried[command] = not denied(redis.pcall(unpack(arguments)))
  end
  if not tried[command] then
    return false
  end
  -- On such a server, a user has the same permissions for all keys that it may touch.
  local step = command == 'MSET' and 2 or 1
  local ends = (step == 2 or command == 'DEL' or command == 'UNLINK') and last or first + 1
  for k = first + 1, ends, step do
    local key = ARGV[k]
    if redis.pcall('TYPE', key).err then
      return false
    end
  end
  return true
end

local function permitted(command, ticket, first, last)
  if redis.acl_check_cmd then
    local known, may = pcall(redis.acl_check_cmd, unpack(ARGV, first, last))
    return known and may  -- a command may have been renamed away
  end
  return may_call(command, ticket, first, last)
end

local grown = {}  -- key -> the most bytes that the effects of this message which were looked at add to its string

local function grows(key, from, to)
  for i = from, to do
    grown[key] = (grown[key] or 0) + #ARGV[i]
  end
end

local function outgrows(key, bit)
  -- Whether the string would be longer than the server allows. What that is, it says of the place of a bit, and changes
  -- nothing. ``bit``: one that is set.
  local there = redis.pcall('STRLEN', key)
  there = type(there) == 'number' and there or 0
  local bytes = math.max(there + (grown[key] or 0), bit and math.floor(bit / 8) + 1 or 0)
  grown[key] = bytes - there
  local reply = redis.pcall('GETBIT', key, string.format('%.0f', math.max(0, bytes * 8 - 8)))
  return type(reply) == 'table' and string.find(reply.err, 'out of range', 1, true) ~= nil
end

local function is_exhausted(key)
  -- Whether a stream has had its last id. Where the user may not ask, nothing is known.
  local info = redis.pcall('XINFO', 'STREAM', key)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      return string.find(info[i + 1], '^18446744073709551615%-') ~= nil
    end
  end
  return false
end

local function problem(ticket, kind, check, first, last)
  local command, key = string.upper(ARGV[first]), ARGV[first + 1]
  if not permitted(command, ticket, first, last) then
    return command .. ': the Redis user of this worker may not do that (its ACL)'
  end
  if kind ~= '' then
    local found = redis.pcall('TYPE', key)
    if found.err then
      return command .. ': the type of the key cannot be read: ' .. found.err
    end
    if found.ok ~= 'none' and found.ok ~= kind then
      return command .. ': the key holds a ' .. found.ok .. ', not a ' .. kind
    end
  end
  if command == 'MSET' then
    for k = first + 1, last, 2 do
      grows(ARGV[k], k + 1, k + 1)
    end
  elseif command == 'APPEND' or string.find(command, 'SET', 1, true) and kind == '' then
    grows(key, first + 2, last)  -- the options of a SET, too
  end
  if command == 'APPEND' and outgrows(key) or command == 'SETBIT' and outgrows(key, tonumber(ARGV[first + 2])) then
    return command .. ': the string would be longer than the server allows (proto-max-bulk-len)'
  end
  if command == 'XADD' and is_exhausted(key) then
    return command .. ': the stream has had its last id'
  end
  if check ~= '' then
    local value
    if kind == 'hash' then
      value = redis.pcall('HGET', key, ARGV[first + 2])
    else
      value = redis.pcall('GET', key)
    end
    if type(value) == 'table' then
      return command .. ': the value cannot be read: ' .. value.err
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

local function call(span)
  local reply = redis.pcall(unpack(ARGV, span[1], span[2]))
  return type(reply) == 'table' and reply.err and string.upper(ARGV[span[1]]) .. ': ' .. reply.err or nil
end

local function applied(calls, publications)
  -- Returns the error, if there is one. None is expected after the checks. But if the script ended here, the messages
  -- before this one would have their effects and no outcome. Publications come first: before 7.0 only an attempt shows
  -- whether a channel is permitted.
  local wrong
  for _, span in ipairs(publications) do
    wrong = wrong or call(span)
  end
  for _, span in ipairs(calls) do
    wrong = wrong or call(span)
  end
  return wrong
end

-- Read all records and fences first: one call for all messages costs little more than one for each of them.
local messages = tonumber(ARGV[2])
local records, applied_fences = {}, {}
for from = 1, messages, CHUNK do
  local upto = math.min(from + CHUNK - 1, messages)
  local some = redis.call('HMGET', KEYS[1], unpack(ARGV, from + 2, upto + 2))
  local fences = redis.call('HMGET', KEYS[2], unpack(ARGV, from + 2, upto + 2))
  for m = from, upto do
    records[m] = some[m - from + 1]
    applied_fences[ARGV[m + 2]] = tonumber(fences[m - from + 1] or '0')
  end
end

local noted = {}
local function note()
  if #noted > 0 then
    redis.call('HSET', KEYS[2], unpack(noted))
    noted = {}
  end
end

local all_fine = true
local at = messages + 2
for m = 1, messages do
  local ticket, fence, outcome, effects = ARGV[m + 2], tonumber(ARGV[at + 1]), ARGV[at + 2], tonumber(ARGV[at + 3])
  local fence_text = ARGV[at + 1]
  at = at + 3
  local effect = at  -- the place in ARGV before each effect
  for _ = 1, effects do
    at = at + 3 + tonumber(ARGV[at + 3])
  end
  local base, count = string.match(records[m] or '', '^%[(%d+),(%d+),')
  base = tonumber(base or '0')
  local done = applied_fences[ticket]
  local current = base > 0 and fence >= base and fence < base + tonumber(count)
  if not current then
    codes[m] = 'STALE'
  elseif fence <= done then
    codes[m] = fence == done and 'AGAIN' or 'STALE'
  else
    local err
    grown = {}
    if effects == 1 and ARGV[effect + 2] == '' then
      -- One command is checked by the server itself: when it fails, nothing was applied. The checks find better words.
      local reply = redis.pcall(unpack(ARGV, effect + 4, at))
      if type(reply) == 'table' and reply.err then
        local command = string.upper(ARGV[effect + 4])
        err = problem(ticket, ARGV[effect + 1], '', effect + 4, at) or command .. ': ' .. reply.err
      end
    else
      local calls, publications = {}, {}
      for _ = 1, effects do
        local first, last = effect + 4, effect + 3 + tonumber(ARGV[effect + 3])
        local check, key, is_wanted = ARGV[effect + 2], ARGV[first + 1], true
        if check == 'gone' then
          -- Before anything of this message is applied: so all such commands for one key are, or none.
          check, is_wanted = '', redis.pcall('TYPE', key).ok == 'none'
        end
        if is_wanted then
          err = err or problem(ticket, ARGV[effect + 1], check, first, last)
          local kind = string.upper(ARGV[first]) == 'PUBLISH' and publications or calls
          kind[#kind + 1] = {first, last}
        end
        effect = last
      end
      err = err or applied(calls, publications)
    end
    if err then
      codes[m] = 'ERR ' .. err
    else
      applied_fences[ticket] = fence
      noted[#noted + 1] = ticket
      noted[#noted + 1] = fence_text
      if #noted >= CHUNK then
        note()
      end
      accepted[#accepted + 1] = outcome
      codes[m] = 'OK'
    end
  end
  all_fine = all_fine and codes[m] == 'OK'
end
note()
if #accepted > 0 then
  redis.call('XADD', KEYS[3], '*', 'i', ARGV[1], 'o', '[' .. table.concat(accepted, ',') .. ']')
end
return all_fine and {} or codes
