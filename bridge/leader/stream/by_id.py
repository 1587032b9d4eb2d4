"""Reads messages from the stream by their ids, for the leader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bridge.routing.ids import member_of
from bridge.routing.messages import Message
from bridge.routing.transitions import READ_BYTES

if TYPE_CHECKING:
    from bridge.leader.step.term import Term

#: Most messages that are read at once.
AT_ONCE = 64


def messages_of(term: Term, named: Sequence[tuple[str, str]]) -> list[Message]:
    """The messages with the given tickets and ids. A message has no payload when its entry is gone or unreadable."""
    replies = term.wire.call_many([("XRANGE", term.keys.stream, id_, id_) for _, id_ in named])
    messages = []
    for (ticket, id_), entries in zip(named, replies, strict=True):
        found = term.parser.parse_begun(id_, entries[0][1]) if entries else None
        messages.append(found if isinstance(found, Message) else Message(id_, ticket, "", b""))
    set_due_times(term, messages)
    return messages


def set_due_times(term: Term, messages: Sequence[Message]) -> None:
    """Sets when these messages are due as the sorted sets of the lane say it. An operator may have changed it, and the
    entry still has the first time.
    """
    some = [
        (message, message.options) for message in messages if message.options is not None and message.options.due_ms
    ]
    if not some:
        return
    members = [member_of(message.id) for message, _ in some]
    keys = term.keys
    late, holding = term.wire.call_many([("ZMSCORE", keys.late, *members), ("ZMSCORE", keys.holding, *members)])
    for (message, options), *scores in zip(some, late, holding, strict=True):
        score = scores[options.hold]
        if score is not None and int(float(score)) != options.due_ms:
            message.options = replace(options, due_ms=int(float(score)))


def message_of(term: Term, ticket: str, id_: str) -> Message:
    """The message ``id_``. It has no payload when its entry was deleted from the stream."""
    [message] = messages_of(term, [(ticket, id_)])
    return message


def read_messages(term: Term, named: Sequence[tuple[str, str]]) -> Iterator[Message]:
    """Like `messages_of`, but reads a few messages at a time: as many as the sizes of the last ones allow."""
    at, count = 0, 4
    while at < len(named):
        found = messages_of(term, named[at : at + count])
        yield from found
        at += count
        count = max(1, min(AT_ONCE, count * 2, READ_BYTES // max(message.size for message in found)))
