"""The audit: checks from the history that no message was lost, reordered, repeated or overlapped.

`audit` reads a lane and checks it. `auditor` gets rows, keeps what is known of messages, and reads nothing;
`delivery_checks` has the checks of one delivery. Imports `bridge.inspect` and the rooms
below it. How the history is written is in `bridge.routing.history`.
"""
