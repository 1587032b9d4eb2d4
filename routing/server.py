"""Checks from a server's INFO that the bridge can use it. Every part of the bridge checks this first.

Facts that a server hides (managed services hide some of INFO, or all of it) count as fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The one policy under which Redis deletes nothing by itself.
NO_EVICTION = "noeviction"


def unfit(info: Mapping[str, Any]) -> str | None:
    """Why the server that answers INFO with ``info`` cannot be used, and what to do; None when it can."""
    if str(info.get("cluster_enabled", 0)) == "1":
        return (
            "runs in cluster mode, and the bridge's steps touch keys of several slots (the queues of workers among "
            "them): give it a server with cluster-enabled no"
        )
    policy = str(info.get("maxmemory_policy", NO_EVICTION))
    if policy != NO_EVICTION:
        return (
            f"has maxmemory-policy {policy}, which deletes leases and the records of tickets when memory is short: "
            f"set it to {NO_EVICTION}"
        )
    return None
