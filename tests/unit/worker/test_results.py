"""Results that are stored together against those that Celery stores: the same bytes, in fewer round trips."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from celery import Celery, Task
from celery.backends.redis import RedisBackend
from celery.result import AsyncResult
from kombu.exceptions import EncodeError
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import ResponseError

from bridge.app.installation import install
from bridge.app.refusing import Drop
from bridge.consumer.deadline import now_ns
from bridge.protocol.names import BUNDLE_TASK, HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.worker.guard.shared_page import SharedPage
from bridge.worker.pool import bundles, light_tracer, results
from bridge.worker.pool.bundles import run_bundle
from bridge.worker.pool.exceptions import picklable
from bridge.worker.pool.execute import Execution
from tests.unit.worker.kept_outcomes import LIFE, KeepingWriter, heads

#: The prefix of a lane that is not the default one.
LANE = {"bridge_stream": "orders"}
KEY = "celery-task-meta-orders::concurrency_stream_group:"


@pytest.fixture(autouse=True)
def written_by_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round is written once, however long its messages take."""
    monkeypatch.setattr(bundles, "WRITE_AFTER_S", 3600.0)


class Server:
    """A Redis as far as the backend uses it. ``fails``: (command, how often it fails, with what)."""

    def __init__(self, fails: tuple[str, int, Exception] | None = None) -> None:
        self.data: dict[bytes, bytes] = {}
        #: What was written: SETEX or SET with its time to live, and PUBLISH.
        self.written: list[Any] = []
        self.round_trips = 0
        self._fails = fails
        self._packed: list[Any] = []

    def _ask(self, command: str) -> None:
        self.round_trips += 1
        if self._fails is not None and self._fails[0] == command and self._fails[1]:
            self._fails = (command, self._fails[1] - 1, self._fails[2])
            raise self._fails[2]

    def get(self, key: bytes) -> bytes | None:
        self._ask("read")
        return self.data.get(key)

    def mget(self, keys: list[bytes]) -> list[bytes | None]:
        self._ask("read")
        return [self.data.get(key) for key in keys]

    def pipeline(self) -> Server:
        self._packed = []
        return self

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def setex(self, *arguments: Any) -> None:
        self._packed.append(("setex", *arguments))

    def set(self, *arguments: Any) -> None:
        self._packed.append(("set", *arguments))

    def publish(self, *arguments: Any) -> None:
        self._packed.append(("publish", *arguments))

    def execute(self) -> None:
        self._ask("write")
        self.written += self._packed
        for command, key, *_, value in self._packed:
            if command != "publish":
                self.data[key] = value if isinstance(value, bytes) else value.encode()


class Shop:
    """An app whose one task has results, and a pool process that runs bundles of its messages."""

    def __init__(self, body: Callable[..., Any], server: Server, **conf: Any) -> None:
        backend = conf.pop("backend", "redis://localhost:1/0")
        base = conf.pop("base", None)
        self.app: Any = install(Celery("shop", broker="redis://localhost:1/0", backend=backend, set_as_current=False))
        self.app.conf.update(bridge_bundle_ms=10_000, bridge_backoff={"jitter": 0}, **LANE, **conf)
        self.app.now = lambda: datetime(2026, 1, 2, tzinfo=UTC)
        self.server = server
        declared: Any = self.app.task(bind=True, name="shop.pay", base=base, lazy=False, shared=False)
        self.task = declared(body)
        self.app.finalize()
        self.app.backend.client = server
        shared = SharedPage()
        shared.begin(LIFE, now_ns() + 60 * 10**9)
        self.writer = KeepingWriter()
        self.execution = Execution(self.app, self.app.bridge.settings.lane, shared, cast("Any", self.writer), "w1@here")

    def run(self, *, messages: int = 2) -> list[Any]:
        """Runs messages of each of two tickets. Returns what shows."""
        runs = [
            [ticket, 10 * i, 1, [[f"{i}-{n}", "shop.pay", {"n": n}] for n in range(messages)]]
            for i, ticket in enumerate(("T1", "T2"))
        ]
        request = {
            "id": "bundle", "task": BUNDLE_TASK, HEADER_INCARNATION: LIFE, HEADER_BASE: 1000, HEADER_RUNS: heads(runs),
            "delivery_info": {"exchange": "", "routing_key": "q", "priority": 0, "redelivered": None},
        }  # fmt: skip
        failed, events, _ = picklable(run_bundle(self.execution, request, json.dumps(runs)))
        outcomes = [(one.message_id, one.kind.name, one.error) for one in self.writer.written + self.writer.applied]
        return [failed, [event[:3] for event in events], outcomes, self.server.written]


def returns(value: Any) -> Callable[..., Any]:
    def body(self: Any, ticket: str, payload: Any) -> Any:
        del self, ticket, payload
        return value

    return body


def fails(self: Any, ticket: str, payload: Any) -> None:
    raise ValueError("no")


def drops(self: Any, ticket: str, payload: Any) -> None:
    raise Drop("old")


def tells_its_state(self: Any, ticket: str, payload: Any) -> int:
    self.update_state(state="BUSY", meta={"ticket": ticket})
    return 1


def has_effects(self: Any, ticket: str, payload: Any) -> int:
    self.ticket.effects.set(f"key of {ticket}", 1)
    return 2


BODIES: dict[str, Callable[..., Any]] = {
    "none": returns(None),
    "values": returns({"ü": [1, 2.5, None, ("a", "b")]}),
    "result of another": returns(AsyncResult("another", app=Celery("another", set_as_current=False))),
    "no json": returns(object()),
    "large": returns("x" * results.MOST_BYTES),
    "error": fails,
    "drop": drops,
    "states of its own": tells_its_state,
    "effects": has_effects,
}
CONFS: dict[str, dict[str, Any]] = {
    "plain": {},
    "for ever": {"result_expires": None},
    "extended": {"result_extended": True},
    "pickle": {"result_serializer": "pickle", "accept_content": ["json", "pickle"]},
    "prefix": {"result_backend_transport_options": {"global_keyprefix": "mine"}},
}


@pytest.fixture
def celerys(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Turns the light tracer off."""

    def off() -> None:
        monkeypatch.setattr(light_tracer, "COMPARED", ())
        light_tracer._celerys_code.cache_clear()

    yield off
    monkeypatch.undo()
    light_tracer._celerys_code.cache_clear()


def by_key(shop: Shop, written: list[Any]) -> dict[bytes, list[Any]]:
    """What was written, by key. As bytes; of a failure without the traceback, which names lines of code."""
    found: dict[bytes, list[Any]] = {}
    for command, key, *more, value in written:
        meta = shop.app.backend.decode_result(value)
        shown = repr({**meta, "traceback": ""}) if meta["traceback"] else value
        found.setdefault(key, []).append((command, *more, shown))
    return found


def same(shop: Callable[[], Shop], celerys: Callable[[], None]) -> tuple[Shop, Shop]:
    """Runs one shop as the bridge does, and another one by Celery's tracer. All that shows must be equal."""
    light = shop()
    found = light.run()
    assert light_tracer.is_light(light.task)
    celerys()
    plain = shop()
    expected = plain.run()
    assert found[:3] == expected[:3]
    # A message's own writes keep their order. Those of several messages are in the order of their ends.
    assert by_key(light, found[3]) == by_key(plain, expected[3])
    assert not light_tracer.is_light(plain.task)
    return light, plain


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("name", BODIES)
def test_what_is_stored_is_what_celery_stores(name: str, conf: str, celerys: Callable[[], None]) -> None:
    light, plain = same(lambda: Shop(BODIES[name], Server(), **CONFS[conf]), celerys)
    assert light.server.round_trips <= plain.server.round_trips
    assert light.server.written


def test_the_results_of_a_round_take_two_round_trips() -> None:
    shop = Shop(returns(1), Server())
    shop.run(messages=3)
    assert [shop.server.round_trips, len(shop.server.data)] == [2 * 3, 6]
    assert min(shop.server.data) == f"{KEY}0-0".encode()


@pytest.mark.parametrize("status", ["SUCCESS", "FAILURE"])
def test_only_a_stored_success_is_not_replaced(status: str, celerys: Callable[[], None]) -> None:
    def shop() -> Shop:
        server = Server()
        failure = {"exc_type": "ValueError", "exc_message": ["before"], "exc_module": "builtins"}
        before = {"status": status, "result": "before" if status == "SUCCESS" else failure}
        server.data[f"{KEY}0-1".encode()] = json.dumps(before).encode()
        return Shop(returns("now"), server)

    light, _ = same(shop, celerys)
    stored = json.loads(light.server.data[f"{KEY}0-1".encode()])["result"]
    assert stored == ("before" if status == "SUCCESS" else "now")


@pytest.mark.parametrize("command", ["read", "write"])
def test_what_cannot_be_stored_together_is_stored_by_celery(command: str) -> None:
    once = Shop(returns(1), Server((command, 1, Unreachable("away"))))
    assert once.run()[:3] == Shop(returns(1), Server()).run()[:3]
    assert len(once.server.data) == 4


@pytest.mark.filterwarnings("ignore:Exception raised outside body")
@pytest.mark.parametrize("command", ["read", "write"])
def test_a_server_that_refuses_results_fails_the_messages_as_under_celery(
    command: str, celerys: Callable[[], None]
) -> None:
    light, _ = same(lambda: Shop(returns(1), Server((command, 1000, ResponseError("no memory")))), celerys)
    assert {kind for _, kind, _ in light.run()[2]} == {"FAILED"}


def circle() -> Any:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize("light", [True, False], ids=["light", "celery"])
@pytest.mark.parametrize("value", [object(), circle(), {(1, 2): 3}], ids=["object", "circle", "key"])
@pytest.mark.parametrize("way", ["bundled", "alone"])
def test_a_body_that_succeeded_is_not_repeated_because_its_result_cannot_be_encoded(
    way: str, value: Any, light: bool, celerys: Callable[[], None]
) -> None:
    """As under Celery: the result is a failure, which handlers get once."""
    if not light:
        celerys()
    called: list[str] = []
    shop = Shop(returns(value), Server(), result_serializer="json")
    type(shop.task).on_failure = lambda _, exc, *__: called.append(type(exc).__name__)
    if way == "bundled":
        shop.run()
        assert {kind for _, kind, _ in shop.run()[2]} == {"DONE"}
    else:
        request = {
            "id": "0-0", "task": "shop.pay", HEADER_INCARNATION: LIFE, HEADER_BASE: 1000,
            HEADER_RUNS: [["T1", 0, 1, 1, 0]], "delivery_info": {}, "retries": 0,
        }  # fmt: skip
        failed, *_ = shop.execution.run_alone(request, "shop.pay", json.dumps([["T1", {}], {}, {}]))
        assert ([one.kind.name for one in shop.writer.written], failed) == (["DONE"], 1)
    assert called == ["EncodeError"] * (8 if way == "bundled" else 1)
    stored = json.loads(shop.server.data[f"{KEY}0-0".encode()])
    assert (stored["status"], stored["result"]["exc_type"]) == ("FAILURE", "EncodeError")


@pytest.mark.parametrize("way", ["in the body", "in before_start"])
def test_what_a_body_cannot_encode_itself_fails_its_message(way: str) -> None:
    def raises_it(*_: Any) -> None:
        raise EncodeError("a call of its own")

    if way == "in the body":
        shop = Shop(raises_it, Server())
    else:
        shop = Shop(returns(1), Server(), base=type("Begins", (Task,), {"before_start": raises_it}))
    assert {kind for _, kind, _ in shop.run()[2]} == {"FAILED"}


def test_a_result_is_stored_before_its_outcome_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies between the two runs the message again; the other way a caller would wait for ever."""
    shop = Shop(returns(1), Server())
    stored: list[int] = []
    monkeypatch.setattr(shop.writer, "write", lambda *_: stored.append(len(shop.server.data)))
    shop.run()
    assert stored == [2, 4]


def test_the_result_of_a_success_that_is_written_already_is_stored_at_once() -> None:
    """If the process died before the end of the round, nobody would store it."""
    stored: list[int] = []

    def body(self: Any, ticket: str, payload: Any) -> int:
        stored.append(len(shop.server.data))
        return has_effects(self, ticket, payload)

    shop = Shop(body, Server())
    shop.run()
    assert stored == [0, 1, 2, 3]


def test_a_backend_that_is_off_stores_nothing() -> None:
    light = Shop(returns(1), Server(), backend=None)
    assert light_tracer.is_light(light.task) is False
    light.run()
    assert light_tracer.is_light(light.task)
    assert light.server.round_trips == 0


@pytest.mark.parametrize("backend", ["cache+memory://", "rpc://"])
def test_another_backend_keeps_celerys_tracer(backend: str) -> None:
    shop = Shop(returns(1), Server(), backend=backend)
    assert not results.is_known(shop.app.backend)


@pytest.mark.parametrize("way", ["class", "instance", "patch", "retries", "started"])
def test_a_backend_that_does_more_keeps_celerys_tracer(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"retries": {"result_backend_always_retry": True}, "started": {"task_track_started": True}}.get(way, {})
    shop = Shop(returns(1), Server(), **conf)
    backend = shop.app.backend
    if way == "class":
        backend.__class__ = type("Mine", (type(backend),), {})
    elif way == "instance":
        backend.store_result = lambda *_, **__: None
    elif way == "patch":
        monkeypatch.setattr(RedisBackend, "_set", lambda *_, **__: None)
    shop.run()
    assert not light_tracer.is_light(shop.task)
