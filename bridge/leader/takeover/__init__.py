"""A new leader reads the lane from Redis: ticket records first, then the pending list, page by page, while it works.

This room imports `bridge.leader.consumers` and the rooms below it. `bridge.master.election` decides which master takes
over.
"""
