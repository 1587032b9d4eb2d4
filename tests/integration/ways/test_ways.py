"""Every way in takes the same message, or refuses it with one line and leaves nothing behind; and every way out shows
the message that came in.

What a page states as a difference of two ways is in `refused_by`.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.app.lanes import lanes_of
from bridge.cli.terminal import echo_json
from bridge.http.cloud_events import events_of
from bridge.http.given_messages import given_message, read_given
from bridge.inspect.delayed import DelayedMessage, Mode
from bridge.operate.replay import parser_of
from bridge.protocol import dead_letters
from bridge.protocol.envelope import OPENING, Envelopes, Run
from bridge.protocol.headers import bundled_runs, readable_runs
from bridge.routing.filters import Filter
from bridge.routing.ids import id_key
from bridge.routing.messages import EntryParser, LeftOut, Message, Refusal
from bridge.routing.partitions import stream_id
from bridge.spark.read.columns import Columns, default_schema
from bridge.spark.read.decoder import Decoder
from bridge.spark.wire.page import read_page
from bridge.stack.embedded import EmbeddedServer
from bridge.testing import handle
from tests.integration.ways import ways_in
from tests.integration.ways.ways_in import (
    CLI,
    DEFAULT,
    EVENTS,
    HAND,
    HTTP,
    MAX_PAYLOAD,
    PYTHON,
    TASKS,
    WAYS,
    Asked,
    RefusedError,
    World,
    can_say,
    later,
    world_of,
)

# -- messages ------------------------------------------------------------------------------------------------------

TEXT = st.text(max_size=12) | st.sampled_from(["\0", '"', "\\", "\r", "\n", "\u2028", "🎫", "ü", "\ud800", "a\r\nb"])
TICKETS = (
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
    | st.sampled_from(
        ["", " ", " a ", "\0", "\r", "\n", "\t", "T\r", "\ufeff", "a,b", '"', "'", "%41", "+1", "x" * 512, "x" * 513,
         "ü" * 256, "ü" * 257, "票" * 171, "\ud800", "a\udc00", "{}", "null", "042", "=1+1", "\x85", "@@RUNS@@", "-"]
    )
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([0, -1, 2**63, 2**64 - 1, 2**64, 10**400, 10**511, 10**512])
)  # fmt: skip
LITERALS = st.sampled_from(
    ["1e22", "1E+2", "-0", "-0.0", "1.0", "0.10", "1e-400", "5e-324", "1.7976931348623157e308", "1e308", "1e400",
     "-1e999", "9007199254740993", "9223372036854775807", "9223372036854775808", "18446744073709551615",
     "18446744073709551616", "-9223372036854775808", "-9223372036854775809", "123456789012345678901234567890",
     "100000000000000000000.0", "0.1234567890123456789", "1e300", '"1234567890123456789"', "NaN", "Infinity",
     "-Infinity", "01", "+1", ".5", "1.", "'a'", "", "tru", "nul", '"\\ud800"', '"\\ud83d\\ude00"', '"\\udc00\\ud800"',
     '"\\u0000"', '"a\\u0022b"', '{"a":1,"a":2}', '{"a":{"b":1,"\\u0062":2}}', '{"":{}}', "[1,]", "{} {}",
     '"\t"', "\ufeff1",
     "9" * 309, "9" * 400]
)  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**66), 2**66) | st.floats(allow_nan=True, allow_infinity=True) | TEXT
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXT | st.sampled_from(["kind", "due", "hold", "payload", "priority"]), inner, max_size=4)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=6) | st.sampled_from(["kind", "timeout", "delay"]), TEXT, max_size=4)
KINDS = st.builds(
    lambda kind, rest: {**rest, "kind": kind}, st.sampled_from(["a", "b", 3, 3.0, "3", True, None]), OBJECTS
)


def _written(value: Any, ascii_: bool, spaces: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii_, separators=(" , ", " : ") if spaces else (",", ":"))


def _nested(literal: str, opening: str) -> str:
    return opening.replace("@", literal)


PAYLOADS = (
    st.builds(_written, VALUES | OBJECTS | KINDS, st.booleans(), st.booleans())
    | st.builds(
        _nested, LITERALS, st.sampled_from(["@", "@", "[@]", '{"a": @}', '[@, 1, "1234567890123456789"]', " @ "])
    )
    | st.builds(lambda n: "[" * n + "]" * n, st.sampled_from([1, 199, 200, 201, 260]))
    | st.builds(lambda n: '{"a":' * n + "1" + "}" * n, st.sampled_from([199, 200, 201]))
    | st.builds(
        lambda n, c: '"' + c * ((n - 2) // len(c.encode())) + "x" * ((n - 2) % len(c.encode())) + '"',
        st.sampled_from([MAX_PAYLOAD - 1, MAX_PAYLOAD, MAX_PAYLOAD + 1]),
        st.sampled_from(["x", "ü", "🎫"]),
    )
)
HUNDRED = 100 * 365 * 86_400
#: Whatever a year is.
TOO_FAR = HUNDRED + 30 * 86_400
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "max_attempts": st.integers(1, 1000) | st.sampled_from([0, 1001, -1, 10**30, None]),
        "timeout": st.sampled_from([0.001, 0.0015, 1, 2.5, 366 * 86_400, 366 * 86_400 + 1, 0, -1, 1e300, None]),
        "expires": st.sampled_from([100, 5000.5, HUNDRED, TOO_FAR, None])
        | st.sampled_from([100, 9000, TOO_FAR]).map(later),
        "priority": st.integers(0, 9) | st.sampled_from([10, -1]),
        "hold": st.booleans(),
        "delay": st.sampled_from([0, 50, 500.25, HUNDRED, TOO_FAR, -1, None]),
    },
) | st.fixed_dictionaries(
    {"eta": st.sampled_from([60, 7000, TOO_FAR, -100]).map(later)},
    optional={
        "hold": st.booleans(),
        "expires": st.sampled_from([50, 8000]).map(later),
        "priority": st.integers(0, 9),
        "delay": st.just(5),
    },
)  # fmt: skip
MESSAGES = st.builds(
    Asked,
    TICKETS,
    PAYLOADS,
    st.none() | st.sampled_from(TASKS),
    st.just({}) | OPTIONS,
)
FILTERS = [Filter.read({"kind": ["a", 3, None]}), Filter.read({"kind": ["3", True]}), Filter.read({"ticket_id": "0"})]

# -- what the pages state ------------------------------------------------------------------------------------------


def _numbers(text: str) -> list[int]:
    found: list[int] = []

    def look(digits: str) -> int:
        found.append(int(digits))
        return found[-1]

    with contextlib.suppress(ValueError, RecursionError):
        json.loads(text, parse_int=look)
    return found


def _has_twice(text: str) -> bool:
    twice = False

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        twice = twice or len({name for name, _ in pairs}) < len(pairs)
        return dict(pairs)

    with contextlib.suppress(ValueError, RecursionError):
        json.loads(text, object_pairs_hook=look)
    return twice


def refused_by(asked: Asked) -> set[Any]:
    """The ways that may refuse a message that others take: a page says so."""
    found: set[Any] = set()
    numbers = _numbers(asked.payload)
    if any(not -(2**63) <= one < 2**64 for one in numbers):
        found |= {*PYTHON, ways_in.push_task, *HTTP, *EVENTS}
    if _has_twice(asked.payload):
        found |= {*HTTP, *EVENTS, *CLI}
    if isinstance(asked.ticket, int) and not -(2**63) <= asked.ticket < 2**64:
        found |= set(HTTP)
    if isinstance(asked.ticket, str) and re.search(r"[\0-\x1f\x7f-\x9f]", asked.ticket):
        found |= set(EVENTS)
    if len(asked.payload.encode("utf-8", "surrogatepass")) > MAX_PAYLOAD:
        found |= {*HAND, ways_in.cli_csv}
    if (eta := asked.options.get("eta")) is not None and eta < later(0):
        found |= {*PYTHON, *HTTP, ways_in.cli_options}
    return found


def taken_by(asked: Asked) -> set[Any]:
    """The ways that may take a message that others refuse: a page says so, or its two times cannot be compared."""
    hold, eta, expires, delay = (asked.options.get(name) for name in ("hold", "eta", "expires", "delay"))
    found: set[Any] = set()
    if hold and eta is None and delay is None:
        # Here it says what becomes of rows that are due later.
        found |= {ways_in.cli_options, ways_in.spark}
    if delay is not None and delay < 0:
        # By hand it is a time that is over, and no delay.
        found |= set(HAND)
    if expires is not None:
        # By hand it is a dead letter, once it is due.
        found |= {ways_in.xadd}
        if isinstance(expires, datetime) != (eta is not None):
            found |= set(WAYS)
    return found


# -- ways out ------------------------------------------------------------------------------------------------------

LIFE = "0123456789abcdef0123456789abcdef"
BASE = b"1750000000000000"


def canonical(value: Any) -> str:
    return json.dumps(value)


def seen_by_ways_out(world: World, entry: tuple[bytes, list[bytes]], message: Message, sent: str) -> None:
    """Checks that every way out shows the message. ``sent``: its payload as JSON."""
    want = (message.ticket, message.task, canonical(json.loads(sent)))
    envelopes = Envelopes(world.app)
    alone = OPENING.encode() + BASE + envelopes.plain(LIFE, "q", message, 0, 1, False)
    body = json.loads(json.loads(alone)["body"])
    assert (body[0][0], json.loads(alone)["headers"]["task"], canonical(body[0][1])) == want
    run = Run(message.ticket, 0, 1, False, [message])
    bundle = json.loads(OPENING.encode() + BASE + envelopes.bundle(LIFE, "q", [run, run], (None, None)))["body"]
    for read in (bundled_runs(bundle), readable_runs(bundle, None)):
        for one in read:
            [(id_, task, payload)] = one.messages
            assert (one.ticket, task, canonical(payload), id_) == (*want, message.id)
    given_ = json.loads(given_message(alone, 1))
    assert (given_["ticket_id"], given_["task"], canonical(given_["payload"])) == want
    [event] = json.loads(events_of([read_given(alone)], "s", 1))
    assert (event["partitionkey"], event["type"], canonical(event["data"])) == want
    fields = tuple(entry[1])
    delayed = DelayedMessage(message.id, 5, Mode.HOLD, fields, DEFAULT).document(1)
    assert (delayed["ticket_id"], delayed["task"], canonical(as_printed(delayed)["payload"])) == want
    died = dead_letters.given_up(
        message, reason="r", error="e", traceback="", attempts=1, at_ms=1, consumer="c", fence=1
    )
    words = [word if isinstance(word, bytes) else str(word).encode() for word in died.fields]
    letter = as_printed(dead_letters.read_letter(b"1-0", words).document())
    assert (letter["ticket_id"], letter["task"], canonical(letter["payload"])) == want
    read_by_spark(entry, message)


def as_printed(document: Any) -> Any:
    """A document as a command prints it."""
    out = io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(out):
        echo_json(document)
    out.flush()
    return json.loads(out.buffer.getvalue())


COLUMNS = Columns.of(default_schema())


def read_by_spark(entry: tuple[bytes, list[bytes]], message: Message) -> None:
    id_, words = entry
    reply = b"*1\r\n*2\r\n$%d\r\n%b\r\n*%d\r\n" % (len(id_), id_, len(words))
    reply += b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    [row] = Decoder(COLUMNS).decode(read_page(pa.py_buffer(reply))).to_pylist()
    own = dict(zip(words[::2], words[1::2], strict=True))
    assert (row["id"], row["ticket_id"]) == (message.id, message.ticket)
    assert row["task"] in (None, message.task)
    if b"payload" in own:
        assert row["payload"].encode() == message.payload


def options_of(message: Message) -> tuple[Any, ...]:
    """The options, with each time as it is, and as the seconds after the push, roughly."""
    if message.options is None:
        return (None, False, None, None, None, 0)
    own = message.options
    ms = int(message.id.partition("-")[0])
    due, until = (None if not at else (at, round((at - ms) / 5000)) for at in (own.due_ms, own.expires_ms))
    return (due, own.hold, own.max_attempts, own.timeout_ms, until, own.priority)


def close(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether the options are the same. A time is that of the push before, or as long after its own push."""
    return all(
        a == b or (at in (0, 4) and a is not None and b is not None and (a[0] == b[0] or abs(a[1] - b[1]) <= 1))
        for at, (a, b) in enumerate(zip(one, other, strict=True))
    )


# -- the judge -----------------------------------------------------------------------------------------------------


def state(world: World) -> dict[bytes, Any]:
    """What is in the server: the sizes of streams, and the names of all other keys."""
    keys = list(world.redis.scan_iter(count=1000))
    with world.redis.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.xlen(key)
        sizes = pipe.execute(raise_on_error=False)
    return {key: size if isinstance(size, int) else None for key, size in zip(keys, sizes, strict=True)}


def forget_notes(world: World) -> None:
    """Deletes the notes of idempotency keys."""
    world.redis.delete(*world.redis.scan_iter("*:once:*"), "none")


def judge(world: World, asked: Asked) -> None:
    parser = EntryParser(default_task=DEFAULT, max_payload=MAX_PAYLOAD, known_tasks=TASKS)
    taken: dict[str, Message] = {}
    left_out: dict[str, tuple[bool, ...]] = {}
    refused: dict[str, str] = {}
    for way in WAYS:
        if not can_say(way, asked):
            continue
        name = way.__name__
        before = state(world)
        if way in (*PYTHON, ways_in.push_task) and not asked.is_json:
            continue  # Python has no value for it.
        try:
            [id_] = way(world, asked)
        except RefusedError as exc:
            text = str(exc)
            assert text
            assert "\n" not in text, name
            assert state(world) == before, f"{name} refused the message ({text}), and left something behind"
            refused[name] = text
            continue
        stream = ways_in.stream_of(id_, world)
        [(raw_id, words)] = world.redis.execute_command("XRANGE", stream, stream_id(id_), stream_id(id_)) or [(b"", [])]
        assert raw_id, f"{name} returned {id_}, which is not in the stream"
        grown = {key: size - (before.get(key) or 0) for key, size in state(world).items() if size is not None}
        assert {key: size for key, size in grown.items() if size} == {stream.encode(): 1}, (name, grown)
        flat = [word for pair in words.items() for word in pair] if isinstance(words, dict) else list(words)
        found = parser.parse(raw_id.decode(), flat)
        assert not isinstance(found, LeftOut)
        if isinstance(found, Refusal):
            assert way in HAND, f"{name} took a message that is a dead letter: {found}"
            letter = dead_letters.refused(found, at_ms=1)
            words_ = [word if isinstance(word, bytes) else str(word).encode() for word in letter.fields]
            as_printed(dead_letters.read_letter(b"1-0", words_).document())
            refused[name] = f"{found.reason.value}: {found.detail}"
            world.redis.xdel(stream, stream_id(id_))
            continue
        taken[name] = found
        left_out[name] = tuple(
            isinstance(
                EntryParser(default_task=DEFAULT, max_payload=MAX_PAYLOAD, known_tasks=TASKS, wanted=wanted).parse(
                    raw_id.decode(), flat
                ),
                LeftOut,
            )
            for wanted in FILTERS
        )
        if way is not ways_in.xadd_fields:
            seen_by_ways_out(world, (raw_id, flat), found, asked.payload)
        want = (asked.ticket_text, asked.task or DEFAULT, canonical(json.loads(asked.payload)))
        got = (found.ticket, found.task, canonical(json.loads(found.payload)))
        assert got == want, name
    if taken:
        first = next(iter(taken))
        for name, one in taken.items():
            assert close(options_of(taken[first]), options_of(one)), (first, taken[first].options, name, one.options)
            assert left_out[name] == left_out[first], (first, name)
        stated = {way.__name__ for way in refused_by(asked)}
        lenient = {way.__name__ for way in taken_by(asked)}
        assert not refused.keys() - stated or not taken.keys() - lenient, f"{sorted(taken)} take it: {refused}"
        if ways_in.push.__name__ in taken:
            done = handle(world.app.tasks[asked.task or DEFAULT], asked.ticket, asked.value)
            assert (done.ticket_id, canonical(done.payload)) == (asked.ticket_text, canonical(asked.value))
    world.module.SEEN.clear()
    forget_notes(world)


@pytest.fixture(params=[1, 3], ids=["one stream", "3 partitions"])
def world(
    request: pytest.FixtureRequest, valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    more = {} if request.param == 1 else {"bridge_partitions": request.param}
    with world_of(valkey, tmp_path, monkeypatch, **more) as made:
        made.app.tasks[DEFAULT].push("warm", 0)
        yield made


TRIED: Any = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.parametrize("examples", [6, pytest.param(500, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_every_way_takes_the_same_message_or_refuses_it(world: World, examples: int) -> None:
    @settings(max_examples=examples, print_blob=True, **TRIED)
    @given(asked=MESSAGES)
    def judged(asked: Asked) -> None:
        judge(world, asked)

    judged()


# -- many at once --------------------------------------------------------------------------------------------------

BATCHES = st.builds(
    lambda task, many: [Asked(one.ticket, one.payload, task, one.options) for one in many],
    st.none() | st.sampled_from(TASKS),
    st.lists(MESSAGES, min_size=1, max_size=4),
)


def new_entries(world: World, before: dict[bytes, Any]) -> dict[str, list[bytes]]:
    """The entries that were added, as ids of messages, with their fields."""
    found: dict[str, list[bytes]] = {}
    for number, stream in enumerate(world.streams):
        added = world.redis.xlen(stream) - (before.get(stream.encode()) or 0)
        for id_, words in world.redis.execute_command("XREVRANGE", stream, "+", "-", "COUNT", added) if added else ():
            suffix = f"@p{number}" if len(world.streams) > 1 else ""
            flat = [word for pair in words.items() for word in pair] if isinstance(words, dict) else list(words)
            found[id_.decode() + suffix] = flat
    return found


def refusal(world: World, way: Any, many: list[Asked], ids: list[str] | None = None) -> str | None:
    """Why a way refuses messages; None: it takes them, and ``ids`` gets their ids."""
    try:
        found = way(world, many)
    except RefusedError as exc:
        return str(exc)
    if ids is not None:
        ids += found
    return None


def judge_batch(world: World, many: list[Asked]) -> None:
    """Many messages are taken in their order, or none is, for that one which the way refuses alone."""
    for way, single in ways_in.MANY.items():
        if not all(can_say(single, one) for one in many):
            continue
        if way in (ways_in.many_python, ways_in.many_async) and not all(one.is_json for one in many):
            continue
        why = [refusal(world, way, [one]) for one in many]
        before = state(world)
        ids: list[str] = []
        refused = refusal(world, way, many, ids)
        assert (refused is None) == (why == [None] * len(many)), (way.__name__, refused, why)
        if refused is not None:
            assert state(world) == before, f"{way.__name__} refused messages ({refused}), and left something behind"
            continue
        entries = new_entries(world, before)
        assert len(entries) == len(many)
        order = [id_ for id_ in ids if id_]
        assert set(order) <= set(entries)
        tickets: dict[bytes, list[str]] = {}
        for _, words in sorted(entries.items(), key=lambda one: id_key(stream_id(one[0]))):
            own = dict(zip(words[::2], words[1::2], strict=True))
            tickets.setdefault(own[b"ticket_id"], []).append(canonical(json.loads(own[b"payload"])))
        wanted: dict[bytes, list[str]] = {}
        for one in many:
            wanted.setdefault(one.ticket_text.encode(), []).append(canonical(json.loads(one.payload)))
        assert tickets == wanted, way.__name__
        if all(ids):
            for one, id_ in zip(many, ids, strict=True):
                own = dict(zip(entries[id_][::2], entries[id_][1::2], strict=True))
                assert (own[b"ticket_id"], canonical(json.loads(own[b"payload"]))) == (
                    one.ticket_text.encode(),
                    canonical(json.loads(one.payload)),
                )
    forget_notes(world)


@pytest.mark.parametrize("examples", [4, pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_many_messages_are_taken_or_refused_as_a_whole(world: World, examples: int) -> None:
    @settings(max_examples=examples, print_blob=True, **TRIED)
    @given(many=BATCHES)
    def judged(many: list[Asked]) -> None:
        judge_batch(world, many)

    judged()


# -- once ----------------------------------------------------------------------------------------------------------

KEYED = st.builds(
    Asked,
    TICKETS,
    PAYLOADS,
    st.none() | st.sampled_from(TASKS),
    st.just({}) | OPTIONS,
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=512),
)


def judge_key(world: World, asked: Asked, chosen: list[Any]) -> None:
    """Whatever way a message comes again under its key, it is there once, and has one id."""
    found = {}
    before = state(world)
    for way in chosen:
        if not can_say(way, asked) or way in refused_by(asked):
            continue
        try:
            found[way.__name__] = way(world, asked)
        except (RefusedError, ValueError):
            continue
    if found:
        assert len({id_ for [id_] in found.values()}) == 1, found
        assert list(new_entries(world, before)) == next(iter(found.values()))
    forget_notes(world)


@pytest.mark.parametrize("examples", [10, pytest.param(500, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_a_key_is_the_same_by_every_way(world: World, examples: int) -> None:
    @settings(max_examples=examples, print_blob=True, **TRIED)
    @given(asked=KEYED, chosen=st.permutations([*PYTHON, *HTTP]))
    def judged(asked: Asked, chosen: list[Any]) -> None:
        judge_key(world, asked, chosen)

    judged()


# -- subscriptions -------------------------------------------------------------------------------------------------

FILTER = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["a", 3, "3", True, None, ["a", "b"]]),
        "ticket_id": st.sampled_from(["T1", 5]),
        "timeout": st.sampled_from(["1", 1]),
    },
).filter(bool)


def outcomes_in(world: World, words: list[bytes], id_: str) -> dict[str, Any]:
    """What each subscription makes of an entry."""
    found = {}
    for lane in lanes_of(world.app):
        if lane.partition is not None and lane.id_suffix and not id_.endswith(lane.id_suffix):
            continue
        got = parser_of(lane).parse(stream_id(id_), words)
        found[lane.name] = got.task if isinstance(got, Message) else type(got).__name__
    return found


def judge_subscriptions(world: World, asked: Asked) -> None:
    found: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    for way in WAYS:
        # These name the task that they are called for, as a message of any language may.
        names_task = way in PYTHON or way is ways_in.push_task
        if not can_say(way, asked) or way in refused_by(asked) or (names_task and asked.task is None):
            continue
        before = state(world)
        try:
            [id_] = way(world, asked)
        except RefusedError as exc:
            refused[way.__name__] = str(exc)
            assert state(world) == before
            continue
        except ValueError:
            continue
        [(_, words)] = new_entries(world, before).items()
        found[way.__name__] = outcomes_in(world, words, id_)
    forget_notes(world)
    by_hand = {way.__name__ for way in HAND}
    if asked.task is None or not _is_foreign(world, asked.task):
        for name, one in found.items():
            if not (name in HTTP_NAMES and asked.task is None):
                assert one == next(iter(found.values())), found
    # A task that is nobody's is refused by all that know the app.
    if found.keys() - by_hand and asked.task is not None:
        assert not refused, (found, refused)


HTTP_NAMES = {way.__name__ for way in (*HTTP, *EVENTS)}


def _is_foreign(world: World, task: str) -> bool:
    return not any(task in lane.tasks for lane in lanes_of(world.app))


SUBSCRIPTIONS = st.fixed_dictionaries(
    {"first": st.fixed_dictionaries({"task": st.just(DEFAULT)}, optional={"filter": FILTER})},
    optional={
        "second": st.fixed_dictionaries({}, optional={"filter": FILTER, "task": st.just(TASKS[1])}),
        "third": st.fixed_dictionaries({}, optional={"filter": FILTER}),
    },
)
SUBSCRIBED = st.builds(
    Asked,
    st.sampled_from(["T1", 5, "T2"]),
    st.builds(_written, KINDS, st.booleans(), st.booleans()),
    st.none() | st.sampled_from(TASKS),
)


@pytest.mark.parametrize("examples", [2, pytest.param(30, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_every_subscription_makes_the_same_of_a_message_by_every_way(
    valkey: EmbeddedServer, tmp_path: Path, examples: int
) -> None:
    @settings(max_examples=examples, print_blob=True, **TRIED)
    @given(subscriptions=SUBSCRIPTIONS, many=st.lists(SUBSCRIBED, min_size=1, max_size=5))
    def judged(subscriptions: dict[str, Any], many: list[Asked]) -> None:
        more = {"bridge_default_task": None, "bridge_subscriptions": subscriptions}
        with (
            pytest.MonkeyPatch.context() as monkeypatch,
            world_of(valkey, tmp_path, monkeypatch, **more) as world,
        ):
            for asked in many:
                judge_subscriptions(world, asked)

    judged()
