"""Options of one message: when it is due, and how it is handled. Fields of its stream entry beside the payload.

- ``due`` (ms since 1970): the message is *delayed* until then. With ``hold`` (``1``) its ticket waits for it. Without,
  it takes its place in the order of its ticket as though it had been pushed when it is due (`Message.place`).
- ``due`` and ``hold`` are options in every entry, so they never belong to a payload that is made of the other fields.
- The names in `BESIDE_PAYLOAD` are options only in an entry with a field ``payload``: in another entry they may be the
  user's own.

Most messages have no options. The parser gets here only for an entry with a field of one of these names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

#: Options of every entry.
ALWAYS = frozenset({b"due", b"hold"})
#: Options of an entry that has a field ``payload``.
BESIDE_PAYLOAD: frozenset[bytes] = frozenset()
#: All of them.
NAMES = ALWAYS | BESIDE_PAYLOAD
#: Furthest that ``due`` may be after the message was added, in ms: 100 years.
FURTHEST_MS = 100 * 36525 * 864_000

_is_number = re.compile(rb"[0-9]{1,20}").fullmatch


class BadOptionError(ValueError):
    """An option cannot be read. ``is_twice``: the entry has its name twice."""

    def __init__(self, text: str, *, is_twice: bool = False) -> None:
        super().__init__(text)
        self.is_twice = is_twice


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
    options = MessageOptions(due_ms, hold)
    return None if options == _NONE else options


_NONE = MessageOptions()


def _due(id_ms: int, found: dict[bytes, bytes]) -> tuple[int, bool]:
    """When the message is due (0: it is not delayed), and whether its ticket waits."""
    text, hold = found.get(b"due"), found.get(b"hold")
    if hold is not None and hold != b"1":
        raise BadOptionError("hold is not 1")
    if text is None:
        if hold is not None:
            raise BadOptionError("hold without due")
        return 0, False
    if not _is_number(text):
        raise BadOptionError("due is not a whole number of ms since 1970")
    due_ms = int(text)
    if due_ms > id_ms + FURTHEST_MS:
        raise BadOptionError("due is more than 100 years after the message was added")
    return (due_ms, hold is not None) if due_ms > id_ms else (0, False)
