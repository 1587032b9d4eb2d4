"""Every way into the stream: the same message, asked for in the form of each."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pytest

from bridge.routing.errors import TicketBridgeError
from bridge.routing.layouts import find_layout
from bridge.routing.producing import places_of
from bridge.routing.pushes import LOADING, Columns, Partition, guard_of, once_opening
from bridge.spark.wire.encoder import RowEncoder
from bridge.spark.write.guard import Mark
from bridge.spark.write.message_options import as_fields
from bridge.spark.write.refusals import check_payloads, check_tickets
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, command_line
from tests.integration.http.http_port import Port, port_of

STREAM = "ticket_stream"
MAX_PAYLOAD = 1000
DEFAULT = "ways.takes"
#: Messages of this task die.
DIES = "ways.dies"
TASKS = [DEFAULT, DIES, 'ways.ünï "q"', "{ways} %s @@BODY@@ x,y", "票" * 170]

APP = """
import bridge
from celery import Celery

app = Celery("ways", broker={url!r}, set_as_current=False)
app.conf.update({settings!r})
bridge.install(app)
SEEN = []

def takes(self, ticket_id, payload):
    own = self.ticket
    SEEN.append((own.message_id, self.name, ticket_id, own.id, payload, own.attempt, own.max_attempts))
    if self.name == "ways.dies" and "alive" not in SEEN:
        raise bridge.Dead("as it was told")

for name in {tasks!r}:
    options = {{"bridge_subscription": "third"}} if name in {third!r} else {{}}
    app.task(bind=True, name=name, lazy=False, shared=False, ignore_result=True, **options)(takes)
"""


class RefusedError(Exception):
    """A way refused the message; the text is what it said."""


@dataclass(frozen=True)
class Asked:
    """One message. ``payload``: JSON text, which may be broken. ``options``: as `TicketTask.push` takes them."""

    ticket: Any
    payload: str
    task: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None

    @property
    def value(self) -> Any:
        """The payload as Python reads it, NaN and halves of pairs too."""
        return json.loads(self.payload)

    @property
    def is_json(self) -> bool:
        """Whether Python has a value for the payload."""
        try:
            return self.value is not Ellipsis
        except (ValueError, RecursionError):
            return False

    @property
    def ticket_text(self) -> str:
        return self.ticket if isinstance(self.ticket, str) else str(self.ticket)


class World:
    """An app, a server, an HTTP port and a command line."""

    def __init__(self, server: EmbeddedServer, shell: CommandLine, app: Any, module: Any, port: Port) -> None:
        self.server, self.shell, self.app, self.module, self.port = server, shell, app, module, port
        self.redis: Any = server.client()
        self.loop = asyncio.new_event_loop()

    def await_(self, made: Any) -> Any:
        return self.loop.run_until_complete(made)

    @property
    def now_ms(self) -> int:
        seconds, micros = self.redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    @property
    def streams(self) -> list[str]:
        return list(find_layout(self.redis, STREAM, 1, ()).streams(STREAM))


@contextmanager
def world_of(server: EmbeddedServer, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Iterator[World]:
    """A world, until the block ends."""
    with command_line(folder, monkeypatch, server.url) as shell:
        values = {"bridge_default_task": DEFAULT, "bridge_max_payload": MAX_PAYLOAD, **settings}
        third = TASKS[2:3] if "third" in values.get("bridge_subscriptions", {}) else []
        shell.write_app(APP.format(url=server.url, settings=values, tasks=TASKS, third=third))
        module = __import__(shell.app)
        with port_of(module.app) as port:
            world = World(server, shell, module.app, module, port)
            try:
                yield world
            finally:
                world.await_(module.app.bridge.aclose())
                world.loop.close()
                world.redis.close()
                module.app.bridge.client.close()


# -- Python --------------------------------------------------------------------------------------------------------


def _task(world: World, asked: Asked) -> Any:
    return world.app.tasks[asked.task or DEFAULT]


def _python(call: Callable[[World, Asked], list[str]]) -> Callable[[World, Asked], list[str]]:
    def way(world: World, asked: Asked) -> list[str]:
        try:
            return call(world, asked)
        except TicketBridgeError as exc:
            raise RefusedError(str(exc)) from None

    way.__name__ = call.__name__
    return way


@_python
def push(world: World, asked: Asked) -> list[str]:
    return [_task(world, asked).push(asked.ticket, asked.value, idempotency_key=asked.key, **asked.options)]


@_python
def apush(world: World, asked: Asked) -> list[str]:
    made = _task(world, asked).apush(asked.ticket, asked.value, idempotency_key=asked.key, **asked.options)
    return [world.await_(made)]


@_python
def push_many(world: World, asked: Asked) -> list[str]:
    rows = [(asked.ticket, asked.value)]
    return list(_task(world, asked).push_many(rows, idempotency_key=asked.key, **asked.options))


@_python
def push_many_own(world: World, asked: Asked) -> list[str]:
    """The options of the message, and not of the call."""
    rows = [(asked.ticket, asked.value, dict(asked.options))]
    return list(_task(world, asked).push_many(rows, idempotency_key=asked.key))


@_python
def apush_many(world: World, asked: Asked) -> list[str]:
    rows = [(asked.ticket, asked.value)]
    made = _task(world, asked).apush_many(rows, idempotency_key=asked.key, **asked.options)
    return list(world.await_(made))


@_python
def push_task(world: World, asked: Asked) -> list[str]:
    """The task `bridge.push`, as Celery Beat calls it."""
    options = {name: value for name, value in asked.options.items() if name in ("delay", "eta", "hold")}
    run = world.app.tasks["bridge.push"]
    run.push_request(id=asked.key or uuid4().hex)
    try:
        return [run.run(asked.task or DEFAULT, asked.ticket, asked.value, **options)]
    finally:
        run.pop_request()


# -- HTTP ----------------------------------------------------------------------------------------------------------


def _http_object(asked: Asked, name_task: bool = True) -> bytes:
    options = dict(asked.options)
    if "eta" in options:
        options["eta"] = options["eta"].isoformat()
    members = {"ticket_id": json.dumps(asked.ticket), "payload": asked.payload}
    if asked.task is not None and name_task:
        members["task"] = json.dumps(asked.task)
    members |= {name: json.dumps(value) for name, value in options.items() if value is not None}
    return ("{" + ", ".join(f'"{name}": {text}' for name, text in members.items()) + "}").encode(
        "utf-8", "surrogatepass"
    )


def _post(world: World, path: str, raw: bytes, headers: Mapping[str, str], key: str | None = None) -> list[str]:
    sent = dict(headers) if key is None else {**headers, "Idempotency-Key": key}
    answer = world.port.post(path, raw=raw, headers=sent)
    if answer.status in (400, 409, 413):
        raise RefusedError(answer.body["detail"])
    assert answer.status == 201, answer
    return list(answer.body["message_ids"])


JSON = {"Content-Type": "application/json"}


def http_one(world: World, asked: Asked) -> list[str]:
    return _post(world, "/api/messages", _http_object(asked), JSON, asked.key)


def http_list(world: World, asked: Asked) -> list[str]:
    path = "/api/messages" if asked.task is None else f"/api/messages?task={quote(asked.task, safe='')}"
    return _post(world, path, b"[" + _http_object(asked, name_task=False) + b"]", JSON, asked.key)


def _event(asked: Asked) -> bytes:
    head = {"specversion": "1.0", "id": uuid4().hex, "source": "/ways", "type": "t", "partitionkey": asked.ticket}
    text = json.dumps(head)[:-1] + ', "data": ' + asked.payload + "}"
    return text.encode("utf-8", "surrogatepass")


def _event_path(asked: Asked) -> str:
    return "/api/messages" if asked.task is None else f"/api/messages?task={quote(asked.task, safe='')}"


def event(world: World, asked: Asked) -> list[str]:
    return _post(world, _event_path(asked), _event(asked), {"Content-Type": "application/cloudevents+json"})


def events(world: World, asked: Asked) -> list[str]:
    kind = {"Content-Type": "application/cloudevents-batch+json"}
    return _post(world, _event_path(asked), b"[" + _event(asked) + b"]", kind)


def event_in_headers(world: World, asked: Asked) -> list[str]:
    ticket = quote(asked.ticket, safe="", errors="surrogatepass")
    head = {"specversion": "1.0", "id": uuid4().hex, "source": "/ways", "type": "t", "partitionkey": ticket}
    headers = {f"ce-{name}": value for name, value in head.items()}
    raw = asked.payload.encode("utf-8", "surrogatepass")
    return _post(world, _event_path(asked), raw, {**headers, **JSON})


# -- bridge push ---------------------------------------------------------------------------------------------------


def _cli(world: World, text: str, *arguments: str) -> list[str]:
    file = world.shell.folder / f"rows-{uuid4().hex}"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    done = world.shell("push", str(file), *arguments, "--json")
    file.unlink()
    if done.exit_code:
        [line] = done.stderr.splitlines()
        raise RefusedError(line)
    found = json.loads(done.stdout)
    assert found["first_id"] == found["last_id"]
    return [found["first_id"]]


def _stdin(world: World, text: str, *arguments: str) -> list[str]:
    done = world.shell("push", "-", *arguments, "--json", stdin=text.encode("utf-8", "surrogatepass"))
    if done.exit_code:
        [line] = done.stderr.splitlines()
        raise RefusedError(line)
    return [json.loads(done.stdout)["last_id"]]


def _at(moment: datetime) -> str:
    return moment.isoformat()


def _columns(world: World, asked: Asked) -> dict[str, Any]:
    """Beside a payload ``expires`` is a time, and not a number of seconds."""
    found: dict[str, Any] = {}
    for name, value in asked.options.items():
        if name == "eta":
            found["due"] = _at(value)
        elif name == "expires":
            if isinstance(value, datetime):
                found[name] = _at(value)
            else:
                found[name] = None if value is None else world.now_ms + round(value * 1000)
        else:
            found[name] = value
    return found


def _line(world: World, asked: Asked) -> str:
    members = {"ticket_id": json.dumps(asked.ticket)}
    if asked.task is not None:
        members["task"] = json.dumps(asked.task)
    members |= {name: json.dumps(value) for name, value in _columns(world, asked).items()}
    members["payload"] = asked.payload.replace("\n", " ")
    return "{" + ", ".join(f'"{name}": {text}' for name, text in members.items()) + "}\n"


def cli_lines(world: World, asked: Asked) -> list[str]:
    return _cli(world, _line(world, asked), "--format", "json")


def _table(world: World, many: Sequence[Asked]) -> str:
    rows = []
    for asked in many:
        row = {"payload": asked.payload, "ticket_id": asked.ticket_text}
        if asked.task is not None:
            row["task"] = asked.task
        rows.append(row | {name: "" if value is None else str(value) for name, value in _columns(world, asked).items()})
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def cli_csv(world: World, asked: Asked) -> list[str]:
    return _stdin(world, _table(world, [asked]), "--format", "csv")


def cli_options(world: World, asked: Asked) -> list[str]:
    """The options and the task as arguments of the command, and the payload as the rest of the line."""
    arguments = [] if asked.task is None else ["--task", asked.task]
    for name, value in asked.options.items():
        if name == "hold":
            arguments += ["--hold"] if value else []
        elif value is not None:
            arguments.append(f"--{name.replace('_', '-')}={_at(value) if isinstance(value, datetime) else value}")
    line = '{"ticket_id": ' + json.dumps(asked.ticket) + ', "payload": ' + asked.payload.replace("\n", " ") + "}\n"
    return _cli(world, line, "--format", "json", *arguments)


# -- by hand, and Spark --------------------------------------------------------------------------------------------


def _fields(world: World, asked: Asked) -> dict[str, bytes]:
    found = {"ticket_id": asked.ticket_text.encode("utf-8", "surrogatepass")}
    if asked.task is not None:
        found["task"] = asked.task.encode()
    for name, value in asked.options.items():
        if value is None or (name in ("hold", "delay") and not value):
            continue
        if name in ("delay", "eta", "expires"):
            ms = value.timestamp() * 1000 if isinstance(value, datetime) else world.now_ms + value * 1000
            found["expires" if name == "expires" else "due"] = b"%d" % round(ms)
        elif name == "timeout":
            found[name] = b"%d" % -(-round(value * 1_000_000) // 1000)
        else:
            found[name] = b"%d" % value
    if asked.options.get("delay") == 0:
        # It is due at once, and no ticket waits for it.
        found.pop("hold", None)
    return found


def _xadd(world: World, asked: Asked, fields: Mapping[str, bytes]) -> list[str]:
    layout = find_layout(world.redis, STREAM, 1, ())
    partition = zlib.crc32(fields["ticket_id"]) % layout.partitions
    id_ = world.redis.xadd(layout.stream(STREAM, partition), fields)
    return [id_.decode() + layout.suffix(partition)]


def xadd(world: World, asked: Asked) -> list[str]:
    payload = asked.payload.encode("utf-8", "surrogatepass")
    return _xadd(world, asked, {**_fields(world, asked), "payload": payload})


def xadd_fields(world: World, asked: Asked) -> list[str]:
    """The payload as fields of the entry."""
    own = {name: value.encode("utf-8", "surrogatepass") for name, value in asked.value.items()}
    return _xadd(world, asked, {**own, **_fields(world, asked)})


@_python
def spark(world: World, asked: Asked) -> list[str]:
    """What a task of a Spark write does with its rows."""
    fields = _fields(world, asked)
    payload = asked.payload.encode("utf-8", "surrogatepass")
    columns = {name: pa.array([value], pa.binary()) for name, value in {**fields, "payload": payload}.items()}
    batch = pa.record_batch(columns)
    sent = tuple(name for name in columns if name != "ticket_id")
    batch = as_fields(batch, "ticket_id", sent)
    check_tickets(batch.column("ticket_id"))
    check_payloads(batch, batch.column("ticket_id"), list(sent), MAX_PAYLOAD)
    rows = RowEncoder("ticket_id", sent).encode(batch)
    names = Columns(("ticket_id", *sent))
    at = Partition(STREAM, guard_of(STREAM, uuid4().hex), 0, 0, None, None, 60)
    layout = find_layout(world.redis, STREAM, 1, ())
    places = places_of(STREAM, layout, rows.hashes(0, 1))
    after = Mark().after(rows.wire(0, 1), 1, "\0".join(names.names).encode())
    world.redis.script_load(LOADING[0][2])
    opening = once_opening(at, Mark().text, after.text, names, 1, rows.present(0, 1), places)
    pool = world.redis.connection_pool
    connection = pool.get_connection()
    try:
        connection.send_packed_command((opening + bytes(rows.wire(0, 1)),), check_health=False)
        reply = connection.read_response()
    finally:
        pool.release(connection)
    assert reply[0] == b"OK", reply
    world.redis.delete(at.guard)
    # A master may have removed it by now.
    id_ = world.redis.xinfo_stream(places.streams[0])["last-generated-id"]
    return [id_.decode() + places.suffixes[0]]


# -- many messages of one task -------------------------------------------------------------------------------------


def many_python(world: World, many: Sequence[Asked]) -> list[str]:
    rows = [(asked.ticket, asked.value, dict(asked.options)) for asked in many]
    try:
        return list(_task(world, many[0]).push_many(rows))
    except TicketBridgeError as exc:
        raise RefusedError(str(exc)) from None


def many_async(world: World, many: Sequence[Asked]) -> list[str]:
    rows = [(asked.ticket, asked.value, dict(asked.options)) for asked in many]
    try:
        return list(world.await_(_task(world, many[0]).apush_many(rows)))
    except TicketBridgeError as exc:
        raise RefusedError(str(exc)) from None


def many_http(world: World, many: Sequence[Asked]) -> list[str]:
    return _post(world, "/api/messages", b"[" + b",".join(map(_http_object, many)) + b"]", JSON)


def many_events(world: World, many: Sequence[Asked]) -> list[str]:
    kind = {"Content-Type": "application/cloudevents-batch+json"}
    return _post(world, _event_path(many[0]), b"[" + b",".join(map(_event, many)) + b"]", kind)


def many_lines(world: World, many: Sequence[Asked]) -> list[str]:
    return _file(world, "".join(_line(world, asked) for asked in many), "json", len(many))


def many_csv(world: World, many: Sequence[Asked]) -> list[str]:
    return _file(world, _table(world, many), "csv", len(many))


def _file(world: World, text: str, kind: str, count: int) -> list[str]:
    file = world.shell.folder / f"rows-{uuid4().hex}.{kind}"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    done = world.shell("push", str(file), "--json", "--batch", "2")
    file.unlink()
    if done.exit_code:
        [line] = done.stderr.splitlines()
        raise RefusedError(line)
    found = json.loads(done.stdout)
    assert found["pushed"] == count
    return [found["first_id"], *[""] * (count - 2), found["last_id"]][:count]


MANY = {many_python: push_many_own, many_async: apush_many, many_http: http_one, many_events: events,
        many_lines: cli_lines, many_csv: cli_csv}  # fmt: skip


#: All ways. Those behind the first line have no words for some messages.
PYTHON = (push, apush, push_many, push_many_own, apush_many)
HTTP = (http_one, http_list)
EVENTS = (event, events, event_in_headers)
CLI = (cli_lines, cli_csv, cli_options)
HAND = (xadd, xadd_fields, spark)
WAYS = (*PYTHON, push_task, *HTTP, *EVENTS, *CLI, *HAND)

_NO_FIELD = {"ticket_id", "task", "payload", "due", "hold"}


def can_say(way: Any, asked: Asked) -> bool:
    """Whether the form of a way has words for a message."""
    options = {name for name, value in asked.options.items() if value is not None}
    moments = {name for name, value in asked.options.items() if isinstance(value, datetime)}
    if way in HAND and {"delay", "eta"} <= options:
        return False
    if way is push_task:
        return options <= {"delay", "eta", "hold"}
    if way in HTTP:
        return "expires" not in moments
    if way in EVENTS:
        # Without a body it has no data, and its payload is null.
        return not options and isinstance(asked.ticket, str) and bool(asked.payload)
    if way is cli_options:
        return "expires" not in moments
    if way is xadd_fields:
        value = asked.value if asked.is_json else None
        return (
            options <= {"delay", "eta", "hold"}
            and isinstance(value, dict)
            and bool(value)
            and all(isinstance(one, str) for one in value.values())
            and _NO_FIELD.isdisjoint(value)
        )
    return True


def later(seconds: float) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)


def stream_of(message_id: str, world: World) -> str:
    layout = find_layout(world.redis, STREAM, 1, ())
    number = message_id.partition("@p")[2]
    return layout.stream(STREAM, int(number or 0))
