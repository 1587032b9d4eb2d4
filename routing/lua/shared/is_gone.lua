-- Whether an error says that there is no such group: no stream either, or a key of another type. Any other error says
-- that the server refuses the command now (NOREPLICAS, READONLY, MISCONF ...), and nothing about the group.
local function is_gone(err)
  return string.find(err, '^NOGROUP ') or string.find(err, '^WRONGTYPE ')
end
