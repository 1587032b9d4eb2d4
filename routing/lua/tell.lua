-- Writes outcomes into a server that is full: without them nothing would be acknowledged, and room would never come.
--
-- From -> to: no message changes its state; the outcomes that this writes are what the leader settles.
-- KEYS: 1 outcomes. ARGV: incarnation, outcomes (a JSON list).
-- Returns: 'OK'.
-- Keeps: promise 3. Bound: O(1); the stream of outcomes is bounded by what is in flight.

-- Redis 6.2 to 9 refuse commands that need memory only as long as the script has not written: what deletes, even
-- nothing, is never refused, and lets the rest pass. (`#!lua flags=allow-oom` would say it better; 6.2 has no flags.)
redis.call('XDEL', KEYS[1], '0-1')
redis.call('XADD', KEYS[1], '*', 'i', ARGV[1], 'o', ARGV[2])
return 'OK'
