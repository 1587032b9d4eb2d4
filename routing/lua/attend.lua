-- Notes that a master is alive, and returns which others are.
--
-- From -> to: no message changes its state.
-- KEYS: 1 masters (by the end of their time, Unix ms), 2 what each of them stands for.
-- ARGV: holder, ms for which it counts as alive, what it stands for, the version that it knows.
-- Returns: {version, ms until the first other master's time ends (-1: there is no other), rows}. The rows: holder, what
--          it stands for, for each master that lives. None when the version is the known one.
--          The version changes whenever a master comes or goes, or stands for something else.
-- Keeps: I8: no lead depends on this set, which only says who should ask for which lead. I9: both keys expire.
-- Bound: O(masters).

local holder, ttl, text = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local changed = false
local gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)
-- A full server accepts all writes of a script if the first needs no memory.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
for _, name in ipairs(gone) do
  redis.call('HDEL', KEYS[2], name)
  changed = true
end
redis.call('ZADD', KEYS[1], now + ttl, holder)
local entry = ARGV[2] .. ' ' .. text
if redis.call('HGET', KEYS[2], holder) ~= entry then
  redis.call('HSET', KEYS[2], holder, entry)
  changed = true
end
if changed then
  redis.call('HSET', KEYS[2], '', string.format('%.0f', time[1] * 1000000 + time[2]))
end
for _, key in ipairs(KEYS) do
  if redis.call('PTTL', key) < 2 * ttl then
    redis.call('PEXPIRE', key, 2 * ttl)
  end
end
local version = redis.call('HGET', KEYS[2], '')
local rows, first = {}, -1
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local row = redis.call('HGET', KEYS[2], name) or ''
  if name ~= holder then
    local left = redis.call('ZSCORE', KEYS[1], name) - now
    local own = tonumber(string.match(row, '^%d+')) or ttl
    if left > own then
      -- The server's clock was set back. Nobody counts as alive for longer than the time that it asked for.
      left = own
      redis.call('ZADD', KEYS[1], now + left, name)
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
