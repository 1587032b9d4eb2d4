-- Says that a master lives, and asks which others do.
--
-- KEYS: 1 masters (by the end of their time, Unix ms), 2 what each of them stands for.
-- ARGV: holder, ms for which it counts as alive, what it stands for, the version that it knows.
-- Returns: {version, ms until the first other master's time ends (-1: there is no other), rows}. The rows: holder, what
--          it stands for, for each master that lives. None when the version is the known one.
-- The version changes whenever a master comes or goes, or stands for something else. No lead depends on this set: it
-- only says who should ask for which lead.
-- Bound: O(masters).

local masters, stands = KEYS[1], KEYS[2]
local holder, ttl, text = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local changed = false
local gone = redis.call('ZRANGEBYSCORE', masters, '-inf', now)
-- The first write needs no memory, so that a full server lets the script continue.
redis.call('ZREMRANGEBYSCORE', masters, '-inf', now)
for _, name in ipairs(gone) do
  redis.call('HDEL', stands, name)
  changed = true
end
redis.call('ZADD', masters, now + ttl, holder)
local entry = ARGV[2] .. ' ' .. text
if redis.call('HGET', stands, holder) ~= entry then
  redis.call('HSET', stands, holder, entry)
  changed = true
end
if changed then
  redis.call('HSET', stands, '', string.format('%.0f', time[1] * 1000000 + time[2]))
end
for _, key in ipairs(KEYS) do
  if redis.call('PTTL', key) < 2 * ttl then
    redis.call('PEXPIRE', key, 2 * ttl)
  end
end
local version = redis.call('HGET', stands, '')
local rows, first = {}, -1
for _, name in ipairs(redis.call('ZRANGE', masters, 0, -1)) do
  local row = redis.call('HGET', stands, name) or ''
  if name ~= holder then
    local left = redis.call('ZSCORE', masters, name) - now
    local own = tonumber(string.match(row, '^%d+')) or ttl
    if left > own then
      -- The server's clock was set back. Nobody counts as alive for longer than the time that it asked for.
      left = own
      redis.call('ZADD', masters, now + left, name)
    end
    if first < 0 or left < first then
      first = left
    end
  end
  rows[#rows + 1] = name
  rows[#rows + 1] = string.gsub(row, '^%d+ ', '')
end
if version == ARGV[4] then
  rows = {}
end
return {version, first, rows}
