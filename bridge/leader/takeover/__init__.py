"""A new leader reads the lane from Redis: records first, then what is pending, page by page, while it works.

Imports every other room of `bridge.leader` but the loop. Which master takes over is decided in
`bridge.master.election`.
"""
