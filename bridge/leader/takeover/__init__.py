"""A new leader reads the lane from Redis: ticket records first, then the pending list, page by page, while it works.

This room imports all other rooms of `bridge.leader`, but not the loop. `bridge.master.election` decides which master
takes over.
"""
