"""Where a message goes next: states, policies, keys and the Lua transitions. Knows no Celery.

`bridge` and `spark` import this room, and it imports neither. Each script is a file in ``lua``, and one typed function
calls it. Forms that no script reads are in `bridge.protocol`. Connections that only `bridge` needs are in
`bridge.link`.
"""
