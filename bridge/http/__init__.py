"""The port of a master for consumers and producers of any language: `bridge run --http HOST:PORT`.

The server has a process of its own, a child of the master (`process`), with an event loop and connections of its own.
Everything that it does goes through Redis, so any master can answer. `application` makes the application of the routes,
and `serving` serves it. FastAPI and uvicorn are needed in this room only, and without ``--http`` nothing of it is
imported. The room imports `bridge.inspect` and what is below it.
"""
