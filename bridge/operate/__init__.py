"""Changes of a lane by an operator: orders to its leader, replays of dead letters, permissions.

Imports `bridge.inspect` and what is below it. The leader's side of an order is in `bridge.leader`; the commands are in
`bridge.cli.commands`.
"""
