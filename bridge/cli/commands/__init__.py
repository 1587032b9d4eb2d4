"""One module for each group of commands, loaded when it is called.

Imports every room of `bridge`. What is shared by commands (printing, checks of arguments) is in `bridge.cli`.
"""
