"""The command line in a test: an app of its own in a folder of its own, and a lane that can be brought into any state.

The lane is changed by the real transitions only, so that what the commands read is what a master writes.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from bridge.cli.main import cli
from bridge.routing import records
from bridge.routing.batch import Batch, DeadLetter, Dispatch
from bridge.routing.keys import LaneKeys
from bridge.routing.membership import register
from bridge.routing.transitions import Leadership, advance
from bridge.stack.embedded import EmbeddedServer
from tests.script_calls import lead

MASTER = "master"
OPENING = b'{"fence":'

APP = """
from celery import Celery
import bridge

app = Celery("shop", broker={url!r}, set_as_current=False)
bridge.install(app)
app.conf.update({settings!r})

# shared=False: or every app of the process would get it.
@app.task(bind=True, name="shop.update", shared=False)
def update(self, ticket_id, payload):
    pass

@app.task(bind=True, name="shop.once", bridge_max_attempts=1, shared=False)
def once(self, ticket_id, payload):
    pass
"""


class CommandLine:
    """Runs ``bridge -A <an app of this test> …`` in this process."""

    def __init__(self, folder: Path, url: str, **settings: Any) -> None:
        self.folder = folder
        # A process imports a module once, so each test's module has another name.
        self.app = f"shop_{uuid.uuid4().hex}"
        values = {"bridge_default_task": "shop.update", **settings}
        self.write_app(APP.format(url=url, settings=values))

    def write_app(self, text: str) -> None:
        (self.folder / f"{self.app}.py").write_text(text)

    def __call__(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        """The result of one command. A stack trace fails the test."""
        return checked(runner().invoke(cli, ["-A", self.app, *arguments], input=stdin))

    def json(self, *arguments: str, stdin: str | bytes | None = None) -> Any:
        """The document that a command with ``--json`` prints."""
        return json.loads(self(*arguments, "--json", stdin=stdin).stdout)


def runner() -> CliRunner:
    """Click's runner of commands, with the two outputs apart."""
    apart: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    return CliRunner(**apart)


def words_left(context: click.Context) -> list[str]:
    """The words of a command line that a group leaves to its subcommands."""
    # Before click 8.2 the name has no underscore.
    protected = context._protected_args if hasattr(context, "_protected_args") else context.protected_args
    return [*protected, *context.args]


def checked(result: Result) -> Result:
    """Returns ``result`` after a check that the command ended by itself or by `sys.exit`."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "Traceback" not in result.stderr
    return result


@contextmanager
def command_line(folder: Path, monkeypatch: pytest.MonkeyPatch, url: str, **settings: Any) -> Iterator[CommandLine]:
    """A command line whose app is in ``folder``, which is the current folder within the block."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    shell = CommandLine(folder, url, **settings)
    # `bridge run` takes these signals for its process, which here goes on to other tests.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield shell
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.modules.pop(shell.app, None)


class Lane:
    """A lane that a test can bring into any state."""

    def __init__(self, server: EmbeddedServer, stream: str = "ticket_stream") -> None:
        self.keys = LaneKeys(stream, "concurrency_stream_group")
        self.redis = server.client(protocol=2)
        self.leadership: Leadership | None = None
        self.incarnations: dict[str, str] = {}

    def make_group(self) -> None:
        self.redis.xgroup_create(self.keys.stream, self.keys.group, "0", mkstream=True)

    def lead(self, lease_ms: int = 60_000) -> Leadership:
        _, token, _ = lead(self.redis, self.keys, "host:1:abc", lease_ms)
        self.leadership = Leadership(self.keys, token, MASTER)
        return self.leadership

    def depose(self) -> None:
        """Ends the leader lease."""
        self.redis.delete(self.keys.leader)

    def join(self, name: str, lease_ms: int = 60_000) -> str:
        """Registers a consumer that is alive for ``lease_ms``. Returns its incarnation."""
        incarnation = uuid.uuid4().hex
        registration = {
            "queue": self.keys.queue(name),
            "slots": 2,
            "pool": "prefork",
            "pid": 7,
            "incarnation": incarnation,
            "since": time.time(),
        }
        register(self.redis, self.keys, name, incarnation, lease_ms, json.dumps(registration), None)
        self.incarnations[name] = incarnation
        return incarnation

    def end_lease(self, name: str) -> None:
        self.redis.delete(self.keys.lease(self.incarnations[name]))

    def add(self, *tickets: str, payload: str = "{}", task: str | None = None) -> list[str]:
        """Adds one message for each of ``tickets``. Returns their ids."""
        named = [] if task is None else ["task", task]
        fields = ["payload", payload, *named]
        ids = [self.redis.execute_command("XADD", self.keys.stream, "*", "ticket_id", t, *fields) for t in tickets]
        return [id_.decode() for id_ in ids]

    def read(self, count: int | None = None) -> None:
        """Lets the master read the next ``count`` messages, or all."""
        self.redis.xreadgroup(self.keys.group, MASTER, {self.keys.stream: ">"}, count=count)

    def dispatch(self, consumer: str, ticket: str, ids: Sequence[str], attempt: int = 1) -> int:
        """Dispatches messages that were read to a consumer as one run. Returns the first fence."""
        tail = records.tail(consumer, self.incarnations[consumer], attempt, list(ids), int(time.time() * 1000))
        to = Dispatch(consumer, self.keys.queue(consumer), list(ids), [(ticket, 0, tail)], [b"}"])
        return self._do(Batch(fences=len(ids), expected={ticket: ""}, dispatches={consumer: to}))

    def hold_back(self, ticket: str, id_: str, attempt: int, due_in_ms: int, cause: str) -> None:
        """Lets a message that was read await its next attempt."""
        now = int(time.time() * 1000)
        tail = records.tail("", "", attempt, [id_], now, cause)
        self._do(
            Batch(
                expected={ticket: ""},
                records=[ticket, records.record(0, tail)],
                retries=[now + due_in_ms, ticket],
                counts={"failed": 1, "retried": 1},
            )
        )

    def finish(self, *ids: str) -> None:
        """Settles messages that were read as done."""
        self._do(Batch(acknowledged=list(ids), counts={"done": len(ids)}))

    def bury(self, id_: str, *fields: Any) -> None:
        """Makes a message that was read dead. ``fields``: names and values of its letter, without its id."""
        self._do(Batch(acknowledged=[id_], dead=[DeadLetter(id_, fields)], counts={"dead": 1}))

    def _do(self, batch: Batch) -> int:
        return advance(self.redis, self.leadership or self.lead(), OPENING, batch).base


def letter(ticket: str, task: str = "shop.update", **more: Any) -> list[Any]:
    """The fields and values of the letter of a message that was given up."""
    fields: dict[str, Any] = {
        "reason": "gave up after 5 attempts",
        "error": "ValueError: no",
        "traceback": "Traceback …\nValueError: no",
        "attempts": 5,
        "at_ms": 1_700_000_000_000,
        "ticket_id": ticket,
        "task": task,
        "payload": "{}",
        "consumer": "w1@host",
        "fence": 12,
        **more,
    }
    return [word for pair in fields.items() for word in pair]


def calls_of(server: EmbeddedServer) -> dict[str, int]:
    """How often each command was called since the server's statistics were reset."""
    with server.client() as client:
        return {name: counted["calls"] for name, counted in client.info("commandstats").items()}
