"""The numbers of tickets that a writer keeps (`bridge.routing.keys.push_tickets`), as they are some time later."""

from __future__ import annotations

from redis import Redis

from bridge.routing.keys import push_tickets


def numbers_are_older(client: Redis, prefix: str, passed_s: int) -> None:
    """Makes the numbers as they would be ``passed_s`` seconds later: the server's clock cannot be moved."""
    for key in (push_tickets(prefix, 0), push_tickets(prefix, 1)):
        about = client.hget(key, "")
        if about is None:
            continue
        began, life = map(int, about.split())
        client.hset(key, "", f"{began - passed_s} {life}")
        # In the past, it expires now.
        client.expire(key, client.ttl(key) - passed_s)
