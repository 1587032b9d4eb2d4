-- The words of a list with spaces.
local function words(list)
  local found = {}
  for word in list:gmatch('%S+') do
    found[#found + 1] = word
  end
  return found
end

-- The time in ms since 1970; nil: this user may not run TIME.
local function time_ms()
  local time = redis.pcall('TIME')
  return not time.err and time[1] * 1000 + math.floor(time[2] / 1000) or nil
end

-- The fields of a message, for XADD, with the further fields `names`, whose values are in ARGV from `at` on. A value:
-- '' = this message has no such field; '+30000' = so many milliseconds after `now`; '=1700000000000' = a time in
-- milliseconds since 1970; any other is the field as it is.
local function pushed_fields(ticket, task, payload, names, at, now)
  local fields = {'ticket_id', ticket, 'task', task}
  for j, name in ipairs(names) do
    local value = ARGV[at + j - 1]
    local sign = value:sub(1, 1)
    if sign == '=' then
      value = value:sub(2)
    elseif sign == '+' then
      value = ('%.0f'):format(now + value)
    end
    if value ~= '' then
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
  end
  fields[#fields + 1] = 'payload'
  fields[#fields + 1] = payload
  return fields
end
