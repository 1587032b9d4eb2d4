"""The text of a notice about dead letters: what `bridge.master.dead_notices` sends. No I/O.

A document of Standard Webhooks: ``{"type", "timestamp", "data"}``. ``data`` has the app, the number of letters, and a
part for each lane: its number, and the first few letters. The texts of an error may be cut, and payloads left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:
    from bridge.protocol.dead_letters import Letter

#: The type of the document.
TYPE = "bridge.dead_letters"
#: Characters of an error in a notice.
ERROR_CHARS = 500


class LaneNews(NamedTuple):
    """What a lane tells: the letters after ``after``, up to ``last``. ``letters``: the first of them, as documents."""

    stream: str
    subscription: str
    after: str
    last: str
    number: int
    letters: Sequence[dict[str, Any]]


def notice_id(news: Sequence[LaneNews]) -> str:
    """The same for the same letters, and another for others."""
    ranges = [[one.stream, one.subscription, one.after, one.last] for one in news]
    return f"dead_{hashlib.sha256(orjson.dumps(ranges)).hexdigest()[:32]}"


def described(letters: Sequence[Letter], suffix: str, *, with_payload: bool, room: int) -> list[dict[str, Any]]:
    """The documents of the first of ``letters``, with at most ``room`` bytes in all. Payloads come into what room is
    left. ``suffix``: what follows the ids of the lane's messages.
    """
    found: list[dict[str, Any]] = []
    for letter in letters:
        document = _letter(letter, suffix)
        room -= len(orjson.dumps(document)) + 1
        if room < 0:
            return found
        found.append(document)
    if with_payload:
        for letter, document in zip(letters, found, strict=True):
            came = _payload(letter)
            # Without the braces of one.
            room -= len(orjson.dumps(came)) - 1
            if room < 0:
                break
            document.update(came)
    return found


def notice_text(app: str, now_ms: int, news: Sequence[LaneNews]) -> bytes:
    """The body of a notice, JSON."""
    document = {
        "type": TYPE,
        "timestamp": datetime.fromtimestamp(now_ms // 1000, UTC).isoformat().replace("+00:00", "Z"),
        "data": {
            "app": app,
            "count": sum(one.number for one in news),
            "lanes": [
                {
                    "stream": one.stream,
                    "subscription": one.subscription,
                    "count": one.number,
                    "letters": one.letters,
                }
                for one in news
            ],
        },
    }
    return orjson.dumps(document)


def _letter(letter: Letter, suffix: str) -> dict[str, Any]:
    document = letter.document()
    names = ("letter_id", "message_id", "ticket_id", "task", "reason", "error", "attempts", "at_ms")
    found = {name: document[name] for name in names}
    found["letter_id"] += suffix
    found["message_id"] += suffix
    found["error"] = found["error"][:ERROR_CHARS]
    return found


def _payload(letter: Letter) -> dict[str, Any]:
    document = letter.document()
    found = {"payload": document["payload"]}
    if document["fields"]:
        found["fields"] = document["fields"]
    return found
