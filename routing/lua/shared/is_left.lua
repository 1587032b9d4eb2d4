-- Whether nobody serves a lane any more: its stream was retired, or is a partition that the whole stream has left. A
-- member that writes there would make keys that were deleted, and nobody would delete them again. `key`: the layout of
-- the whole stream. When it is lost or cannot be read, no member is refused: masters store it again.
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
