"""Connections: to the server of a lane, what is done while it is away, and its clock beside ours.

Imports `bridge.settings` and `bridge.routing`. Clients that Spark uses as well are made in
`bridge.routing.connection`; what is sent over a connection is in `bridge.protocol`.
"""
