"""The command `bridge`: `main` finds a command and shows an error as one line; `commands` has a module for each group.

Thin: a command checks arguments, calls one of the rooms below, and prints. Imports every room; nothing imports this
one.
"""
