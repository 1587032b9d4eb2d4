"""One module for each group of commands, loaded when a command of it is called.

It imports `bridge.cli` and what is below it. Code that commands share (printing, types of arguments) is in
`bridge.cli`.
"""
