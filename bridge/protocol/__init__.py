"""Every form that crosses a process: Celery messages, outcomes, registrations, dead letters, names.

One module has one form: how it is written and how it is read. Imports `bridge.settings` and what is below it. Forms
that Lua scripts know (records, history rows, stream entries) are in `bridge.routing`.
"""
