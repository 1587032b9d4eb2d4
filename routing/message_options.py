"""Options of one message: when it is due, and how it is handled. Fields of its stream entry beside the payload.

- ``due`` (ms since 1970): the message is *delayed* until then. With ``hold`` (``1``) its ticket waits for it. Without,
  it takes its place in the order of its ticket as though it had been pushed when it is due (`Message.place`).
- ``due`` and ``hold`` are options in every entry, so they never belong to a payload that is made of the other fields.
- ``max_attempts`` (1 to 1000), ``timeout`` (ms): instead of the task's own; of two time limits the smaller one holds.
- ``expires`` (ms since 1970): a message that has not begun by then is dead (`has_expired`). One that would be due later
  is due then: else its ticket would wait for a message that can never begin.
- ``priority`` (0 to 9): a ticket whose oldest message has a higher one is dispatched sooner. The order within a ticket
  does not change.
- The names in `BESIDE_PAYLOAD` are options only in an entry with a field ``payload``: in another entry they may be the
  user's own.

Most messages have no options. The parser gets here only for an entry with a field of one of these names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

#: Options of every entry.
ALWAYS = frozenset({b"due", b"hold"})
#: Options of an entry that has a field ``payload``.
BESIDE_PAYLOAD = frozenset({b"max_attempts", b"timeout", b"expires", b"priority"})
#: All of them.
NAMES = ALWAYS | BESIDE_PAYLOAD
#: Furthest that ``due`` may be after the message was added, in ms: 100 years.
FURTHEST_MS = 100 * 36525 * 864_000
#: The latest time of all, Unix ms: a sorted set counts no further without gaps. A producer may choose an id beyond it.
LATEST_MS = 2**53
#: The largest number of attempts, the longest time limit (in ms: 366 days) and the highest priority.
MOST_ATTEMPTS = 1000
LONGEST_TIMEOUT_MS = 366 * 86_400_000
HIGHEST_PRIORITY = 9
#: The reason in the dead letter of a message that had not begun when it expired.
EXPIRED = "expired before it began"
#: Why a dead message is not replayed when it has expired.
HAS_EXPIRED = "it has expired; push it again"

_is_number = re.compile(rb"[0-9]{1,20}").fullmatch


class BadOptionError(ValueError):
    """An option cannot be read. ``is_twice``: the entry has its name twice. ``is_due``: it is `due` or `hold`."""

    def __init__(self, text: str, *, is_twice: bool = False, is_due: bool = False) -> None:
        super().__init__(text)
        self.is_twice = is_twice
        self.is_due = is_due


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """The options of one message. A message without any has None in place of this."""

    #: Unix ms until when the message is delayed; 0: it is not.
    due_ms: int = 0
    #: Whether its ticket waits for it.
    hold: bool = False
    max_attempts: int | None = None
    timeout_ms: int | None = None
    expires_ms: int | None = None
    priority: int = 0

    @property
    def overtakes(self) -> bool:
        """Whether the message is delayed, and its ticket goes on without it."""
        return self.due_ms > 0 and not self.hold

    @property
    def alone(self) -> bool:
        """Whether the message travels alone, since its options are those of a Celery message."""
        return not (self.max_attempts is None and self.timeout_ms is None and self.expires_ms is None)

    def has_expired(self, now_ms: float) -> bool:
        """Whether the message has expired. Only one that has not begun is dead for it."""
        return self.expires_ms is not None and now_ms >= self.expires_ms


def read_options(id_ms: int, fields: Sequence[bytes], *, has_payload: bool) -> MessageOptions | None:
    """The options in the fields of an entry; None: it has none, or they change nothing. ``id_ms``: when it was added.

    Raises `BadOptionError`.
    """
    known = NAMES if has_payload else ALWAYS
    found: dict[bytes, bytes] = {}
    for i in range(0, len(fields), 2):
        name = fields[i]
        if name in known:
            if name in found:
                raise BadOptionError(name.decode(), is_twice=True)
            found[name] = fields[i + 1]
    due_ms, hold = _due(id_ms, found)
    if found.keys() <= ALWAYS:
        return _only_due(due_ms, hold) if due_ms else None
    attempts = _number(found, b"max_attempts", 1, MOST_ATTEMPTS)
    timeout_ms = _number(found, b"timeout", 1, LONGEST_TIMEOUT_MS)
    expires_ms = _number(found, b"expires", 0, min(id_ms + FURTHEST_MS, LATEST_MS))
    if expires_ms is not None and expires_ms < due_ms:
        due_ms, hold = (expires_ms, hold) if expires_ms > id_ms else (0, False)
    priority = _number(found, b"priority", 0, HIGHEST_PRIORITY) or 0
    options = MessageOptions(due_ms, hold, attempts, timeout_ms, expires_ms, priority)
    return None if options == _NONE else options


_NONE = MessageOptions()


@lru_cache(maxsize=64)
def _only_due(due_ms: int, hold: bool) -> MessageOptions:
    """The options of a delayed message without others. Many may be due at one time, and share them."""
    return MessageOptions(due_ms, hold)


def _number(found: dict[bytes, bytes], name: bytes, least: int, most: int) -> int | None:
    text = found.get(name)
    if text is None:
        return None
    if not _is_number(text) or not least <= int(text) <= most:
        raise BadOptionError(f"{name.decode()} is not a whole number from {least} to {most}")
    return int(text)


def _due(id_ms: int, found: dict[bytes, bytes]) -> tuple[int, bool]:
    """When the message is due (0: it is not delayed), and whether its ticket waits."""
    text, hold = found.get(b"due"), found.get(b"hold")
    if hold is not None and hold != b"1":
        raise BadOptionError("hold is not 1", is_due=True)
    if text is None:
        if hold is not None:
            raise BadOptionError("hold without due", is_due=True)
        return 0, False
    if not _is_number(text):
        raise BadOptionError("due is not a whole number of ms since 1970", is_due=True)
    due_ms = int(text)
    if due_ms > id_ms + FURTHEST_MS:
        raise BadOptionError("due is more than 100 years after the message was added", is_due=True)
    if due_ms > LATEST_MS:
        raise BadOptionError(f"due is later than {LATEST_MS} ms since 1970", is_due=True)
    return (due_ms, hold is not None) if due_ms > id_ms else (0, False)
