"""Operators' orders: written as other versions read them, read as they were written, and refused when they are none."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from bridge.protocol.orders import (
    ORDERS,
    PARKED_BY,
    REASON_CHARS,
    ChangeDelayed,
    DelayedAct,
    Drain,
    Order,
    Park,
    Release,
    Replay,
    Resume,
    Transfer,
    order_text,
    read_order,
)
from bridge.routing.messages import MAX_TICKET_BYTES

TEXTS: dict[bytes, Order] = {
    b'{"do":"park","ticket":"T","reason":"r"}': Park("T", "r"),
    b'{"do":"release","ticket":"T"}': Release("T"),
    b'{"do":"drain","consumer":"w1@a"}': Drain("w1@a"),
    b'{"do":"resume","consumer":"w1@a"}': Resume("w1@a"),
    b'{"do":"transfer","consumer":"w1@a","to":null,"tickets":null}': Transfer("w1@a"),
    b'{"do":"transfer","consumer":"w1@a","to":"w2@b","tickets":["A","B"]}': Transfer("w1@a", "w2@b", ("A", "B")),
    b'{"do":"replay","letters":["1-0","2-0"]}': Replay(("1-0", "2-0")),
    b'{"do":"delayed","act":"cancel","ids":["1-0"],"due_ms":null}': ChangeDelayed(DelayedAct.CANCEL, ("1-0",)),
    b'{"do":"delayed","act":"reschedule","ids":["1-0"],"due_ms":7}': ChangeDelayed(DelayedAct.RESCHEDULE, ("1-0",), 7),
}


@pytest.mark.parametrize("text", TEXTS, ids=bytes.decode)
def test_an_order_is_written_and_read_in_one_form(text: bytes) -> None:
    assert order_text(TEXTS[text]) == text
    assert read_order(text) == TEXTS[text]


def test_each_order_has_a_form() -> None:
    assert {type(order) for order in TEXTS.values()} == set(ORDERS.values())
    assert read_order(b'{"do":"delayed","act":"now","ids":[]}') == ChangeDelayed(DelayedAct.NOW, ())


def test_an_order_may_say_less_and_its_reason_is_bounded() -> None:
    assert read_order(b'{"do":"park","ticket":"T"}') == Park("T", PARKED_BY)
    assert read_order(b'{"do":"transfer","consumer":"w1@a"}') == Transfer("w1@a")
    assert read_order(order_text(Park("T", "x" * 10_000))) == Park("T", "x" * REASON_CHARS)
    assert read_order(order_text(Park("T" * MAX_TICKET_BYTES))) == Park("T" * MAX_TICKET_BYTES)


@pytest.mark.parametrize(
    "fields",
    [
        *(None, [], "park", {}, {"do": "dance"}, {"do": ["park"], "ticket": "T"}, {"do": "park"}),
        *({"do": "park", "ticket": 7}, {"do": "park", "ticket": ""}, {"do": "release", "ticket": "é" * 300}),
        *({"do": "drain", "consumer": [1]}, {"do": "resume", "consumer": ""}, {"do": "transfer", "consumer": None}),
        *({"do": "transfer", "consumer": "w", "tickets": 5}, {"do": "transfer", "consumer": "w", "tickets": [""]}),
        *({"do": "delayed", "ids": ["1-0"]}, {"do": "delayed", "act": "hurry", "ids": ["1-0"]}),
        *({"do": "delayed", "act": "now", "ids": ["x"]}, {"do": "delayed", "act": "now"}),
        *(
            {"do": "delayed", "act": "reschedule", "ids": ["1-0"]},
            {"do": "delayed", "act": "now", "ids": [], "due_ms": 7},
        ),
        *({"do": "delayed", "act": "reschedule", "ids": ["1-0"], "due_ms": due} for due in ("7", -1, 2**60, 1.5)),
        {"do": "delayed", "act": "now", "ids": ["1-0"] * 501},
        *({"do": "replay"}, {"do": "replay", "letters": ["x"]}, {"do": "replay", "letters": [{}]}),
        # A server takes none of these as an id.
        *({"do": "replay", "letters": [id_]} for id_ in (f"{2**64}-0", f"0-{2**64}", "1")),
        *({"do": "delayed", "act": "cancel", "ids": [id_]} for id_ in (f"{2**64}-0", f"0-{2**64}")),
    ],
    ids=lambda fields: orjson.dumps(fields).decode()[:70],
)
def test_what_is_no_order_is_refused(fields: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        read_order(orjson.dumps(fields))
