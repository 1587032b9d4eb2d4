-- Writes outcomes, even to a full server: without outcomes nothing is acknowledged, and no memory becomes free.
--
-- From -> to: no message changes its state; the outcomes that this writes are what the leader settles.
-- KEYS: 1 outcomes, 2 layout of the whole stream (`bridge.routing.keys.layout_key`).
-- ARGV: incarnation, outcomes (a JSON list), the generation of the lane's partition.
-- Returns: 'OK'; 'LAYOUT': the stream was retired, or has left this partition: nothing was written.
-- Keeps: promise 3. I9: an outcome that comes late makes no key of a lane that was deleted. Bound: O(1); the stream of
--        outcomes is bounded by what is in flight.

-- shared: is_left

if is_left(KEYS[2], ARGV[3]) then
  return 'LAYOUT'
end
-- Redis 6.2 to 9 refuse commands that need memory only until the script has written. A deletion, even of nothing, is
-- never refused, and lets the other commands pass. (`#!lua flags=allow-oom` would be clearer; 6.2 has no flags.)
redis.call('XDEL', KEYS[1], '0-0')
redis.call('XADD', KEYS[1], '*', 'i', ARGV[1], 'o', ARGV[2])
return 'OK'
