-- Whether id a is younger than id b. Compared as text: a sequence may be larger than what Lua's numbers hold.
local function younger(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if a_ms ~= b_ms then
    return #a_ms > #b_ms or (#a_ms == #b_ms and a_ms > b_ms)
  end
  return #a_seq > #b_seq or (#a_seq == #b_seq and a_seq > b_seq)
end
