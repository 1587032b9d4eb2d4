"""A master process: it takes its share of the lanes, and leads each while it is elected.

This room imports `bridge.leader` and the rooms below it. `bridge.leader` has what a master does while it leads. The
command is in `bridge.cli.commands.run`.
"""
