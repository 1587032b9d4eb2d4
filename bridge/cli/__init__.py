"""The command `bridge`. `main` finds a command and shows an error as one line. `commands` has a module for each group.

A command checks its arguments, calls a function of another room, and prints the result. This room imports
`bridge.stack` and what is below it. No room imports this one.
"""
