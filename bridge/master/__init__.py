"""A master process: it stands for election, and leads a lane while it is elected.

Imports `bridge.leader` and what is below it. What is done while leading is in `bridge.leader`; the command is
`bridge.cli.commands.run`.
"""
