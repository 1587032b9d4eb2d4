"""Reads the replies of XINFO GROUPS, raw or as dictionaries, and of XPENDING, raw; and the names in them."""

from __future__ import annotations

from typing import Any, NamedTuple

from redis.exceptions import ResponseError


class Group(NamedTuple):
    """One group of a stream."""

    #: Id up to which it has read.
    read_to: str
    #: Entries that are pending in it.
    pending: int
    #: Entries that it has not read, as the server has it (see `unread`); None: it cannot tell, or is older than 7.0.
    lag: int | None
    #: Entries that it has read so far; None: as above.
    entries_read: int | None

    def unread(self, length: int) -> int | None:
        """Entries that it has not read, of a stream with ``length`` entries; None: the server cannot tell.

        After entries were trimmed unread, Valkey counts them until the group reads again, as Redis before 7.2.6 does.
        Then all that is left is unread.
        """
        return None if self.lag is None else min(self.lag, length)


class PendingSummary(NamedTuple):
    """The pending entries of a group."""

    total: int
    #: Id of the oldest; None: there is none.
    oldest: str | None
    #: Name in the group -> how many are pending under it, of names with any. A name need not be UTF-8.
    under: dict[bytes, int]


def pending_summary(reply: Any) -> PendingSummary:
    """A raw reply of XPENDING without a range; None where there is no group."""
    if not reply or not reply[0]:
        return PendingSummary(0, None, {})
    total, oldest, _, names = reply
    return PendingSummary(int(total), oldest.decode(), {name: int(number) for name, number in names or ()})


def group_in(reply: Any, name: str) -> Group | None:
    """The group ``name`` in a reply of XINFO GROUPS; None: there is no such group, or no stream.

    ``reply`` may be an error from a pipeline. It is raised, unless it says that there is no stream.
    """
    return groups_in(reply).get(name.encode())


def groups_in(reply: Any) -> dict[bytes, Group]:
    """Name -> group, in a reply of XINFO GROUPS. No groups where there is no stream. ``reply``: as for `group_in`.

    A name need not be UTF-8.
    """
    if isinstance(reply, ResponseError) and "no such key" in str(reply):
        return {}
    if isinstance(reply, Exception):
        raise reply
    found = {}
    for flat in reply:
        # A client without raw replies makes a dictionary of each group, with names as text.
        pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
        facts = {key.encode() if isinstance(key, str) else key: value for key, value in pairs}
        read_to = facts[b"last-delivered-id"].decode()
        found[facts[b"name"]] = Group(read_to, int(facts[b"pending"]), facts.get(b"lag"), facts.get(b"entries-read"))
    return found


def unless_missing(reply: Any) -> Any:
    """The reply. None if it is the error that the stream or the group does not exist. Raises other errors."""
    if isinstance(reply, ResponseError) and ("no such key" in str(reply) or "NOGROUP" in str(reply)):
        return None
    if isinstance(reply, Exception):
        raise reply
    return reply


def name_in_group(raw: bytes | str) -> str:
    """The name of a group, or of a consumer in it, from a reply. `raw_name` writes one back that is no UTF-8."""
    return raw if isinstance(raw, str) else raw.decode(errors="surrogateescape")


def raw_name(name: str) -> bytes:
    """A name of `name_in_group` as it was."""
    return name.encode(errors="surrogateescape")


def shown_name(name: str) -> str:
    """A name of `name_in_group` for people and JSON: one that is no UTF-8 gets question marks."""
    return raw_name(name).decode(errors="replace")
