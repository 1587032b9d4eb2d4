"""The reference of the lane's scripts, in plain Python: what each must change on the server, and what it must refuse.

Three tiers stand on it: the unit tests of the leader work on it instead of a server, the model in `tests.protocol`
searches it for all interleavings, and `tests.scripts.test_lane_rules` compares it with the real scripts on real
servers. It imports nothing of `bridge` but `bridge.routing`: the types of the calls, the records, the states.
"""
