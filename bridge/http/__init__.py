"""The port of a master for consumers and producers of any language: `bridge run --http HOST:PORT`.

The server has a process of its own, a child of the master (`process`), with an event loop and connections of its own.
Everything that it does goes through Redis, so any master can answer. `application` makes the application of the routes,
and `serving` serves it. Imports of FastAPI and uvicorn are in this room only, and without ``--http`` nothing of it is
imported. It may import every room except `bridge.cli`, `bridge.testing` and `bridge.stack`.
"""
