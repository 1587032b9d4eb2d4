-- Whether nobody serves a lane any more: its stream was retired, or is a partition that the whole stream has left. What
-- was deleted then would be there again, and nobody would delete it. `key`: the layout of the whole stream; a layout
-- that is lost, or cannot be read, is no reason to refuse a member: masters store it again.
local function is_left(key, generation)
  local stored = redis.pcall('GET', key)
  local read, layout = pcall(cjson.decode, type(stored) == 'string' and stored or '')
  if not read or type(layout) ~= 'table' then
    return false
  end
  local older = type(layout.older) == 'table' and layout.older.generation
  local mine = tonumber(generation)
  return layout.retired_ms or (layout.generation and layout.generation ~= mine and older ~= mine)
end
