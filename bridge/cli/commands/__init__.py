"""One module for each group of commands, loaded when a command of it is called.

It imports every room of `bridge`. Code that commands share (printing, types of arguments) is in `bridge.cli`.
"""
