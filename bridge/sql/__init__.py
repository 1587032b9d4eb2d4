"""Effects in the users' own PostgreSQL happen exactly once: `Inbox`. Needs the extra ``sql``.

It may import `bridge.app` and what is below it; nothing imports it. Effects in Redis need no inbox: they are in
`bridge.app`, and are applied with the success.
"""

from __future__ import annotations

from bridge.sql.inbox import Inbox

__all__ = ["Inbox"]
