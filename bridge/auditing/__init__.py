"""Proofs from the history of a lane; `bridge.audit` is the door to it."""
