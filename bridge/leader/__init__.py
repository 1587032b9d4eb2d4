"""The leader of one lane: `leader` has its loop, the rooms below have its parts.

A part takes the `Term` (one leader's term: connections, keys, clocks) and, where it writes, the `Steps` (settle, plan,
write in one script); no part takes the leader. Imports `bridge.protocol` and `bridge.app` and what is below them.
From top to bottom: `takeover`, `duties`, `consumers`, `repair`, `stream`, `step`, `picture`. Who leads is decided in
`bridge.master`.
"""
