"""Reads of a lane for people and programs: status, consumers, tickets, dead letters. Never writes.

Imports `bridge.app` and what is below it. What changes a lane is in `bridge.operate`; proofs from the history are
in `bridge.audit`; how all this is printed is in `bridge.cli`.
"""
