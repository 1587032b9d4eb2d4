"""The leader of one lane: `leader` has its loop, `parts` makes its parts, and the rooms in it have them.

Each part gets the `Term` (connections, keys and clocks of one term). A part that writes gets the `Steps` as well
(settle, plan, write in one script). No part gets the leader. This room imports `bridge.protocol`, `bridge.app` and the
rooms below them. Its own rooms, from top to bottom: `takeover`, `duties`, `consumers`, `repair`, `stream`, `step`,
`picture`. `bridge.master` decides which master leads.
"""
