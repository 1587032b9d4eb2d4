"""Proof from the history that the promises were kept: nothing lost, reordered, repeated or overlapped.

`audit` reads a lane and judges it; `auditor` judges rows alone. Imports `bridge.inspect` and what is below it. How the
history is written is in `bridge.routing.history`.
"""
