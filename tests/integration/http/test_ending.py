"""How a server ends: at once where it can, in a bounded time in any case."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import trustme

from bridge.http import connections, options, serving
from bridge.http.options import Certificate
from bridge.producer import push
from bridge.routing.errors import ConfigurationError
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST, free_port
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.http.http_port import Port, app_of, port_of, secret_of, token_file
from tests.integration.http.port_processes import PortProcesses, port_processes
from tests.integration.lanes import APP


def test_a_master_ends_in_time_with_clients_that_wait(nodes: NodeYard) -> None:
    port = Port(free_port())
    master = nodes.master("m1", app=APP, arguments=("--http", f"{HOST}:{port.number}"), ready_text="leading")
    assert port.get("/api/health").status == 200
    # An idle connection, one that sends its headers, and one that sends its body.
    with port.dial() as _, port.dial() as headers, port.dial() as body:
        headers.sendall(b"GET /api/health HTTP/1.1\r\n")
        body.sendall(
            b"POST /api/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        # While all of them stay open
        master.terminate()
    assert "stopped" in master.logs()
    assert "Traceback" not in master.logs()


PUSHES: dict[str, tuple[Any, dict[str, str]]] = {
    "one": ({"ticket_id": "T", "payload": 1}, {}),
    "parts": ([{"ticket_id": f"T{n % 7}", "payload": n} for n in range(1600)], {}),
    "with a key": ([{"ticket_id": f"T{n % 7}", "payload": n} for n in range(1600)], {"Idempotency-Key": "k"}),
    "events": (
        [
            {"specversion": "1.0", "id": str(n), "source": "/s", "type": "t", "partitionkey": f"T{n % 7}", "data": n}
            for n in range(5)
        ],
        {"Content-Type": "application/cloudevents-batch+json"},
    ),
}


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        # What is sent in one step ends with its first answer.
        pytest.param(kind, answers, marks=pytest.mark.long if answers == 3 and kind in ("one", "events") else ())
        for kind in PUSHES
        for answers in (0, 1, 3)
    ],
)
def test_a_push_that_a_stop_cuts_off_says_what_is_in(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, kind: str, answers: int
) -> None:
    """Else a client that sends it again would add it twice."""
    monkeypatch.setattr(serving, "STOP_S", 0.2)
    app = app_of(valkey.url)
    # Its first call may only load the scripts.
    app.tasks["shop.apply"].push("warm", 0)
    stream = valkey.client(decode_responses=True)
    stream.delete("ticket_stream")
    body, headers = PUSHES[kind]
    replies = 0
    held = threading.Event()

    async def answer(client: Any, call: bytes) -> Any:
        nonlocal replies
        reply = await ask(client, call)
        if replies == answers:
            held.set()
            await asyncio.sleep(3600)
        replies += 1
        return reply

    ask = push._answer_async
    monkeypatch.setattr(push, "_answer_async", answer)
    with ThreadPoolExecutor(1) as pool:
        with port_of(app) as port:
            pushed = pool.submit(port.post, "/api/messages", body, headers=headers)
            wait_until(lambda: held.is_set() or pushed.done(), description="the push to wait for Redis")
        answered = pushed.result()
    app.bridge.client.close()
    found: Any = stream.xrange("ticket_stream")
    ids = [id_ for id_, _ in found]
    if not held.is_set():
        assert (answered.status, answered.body["message_ids"]) == (201, ids)
        return
    assert (answered.status, answered.headers["retry-after"], answered.body["unanswered"]) == (503, "1", True)
    certain = answered.body.get("message_ids", [])
    assert certain == ids[: len(certain)]
    # The last step was carried out, and its answer was not waited for.
    step = {"one": 1, "events": 1}.get(kind, 500)
    assert (len(certain), len(ids)) == (step * answers, min(step * (answers + 1), 1 if kind == "one" else len(body)))


def test_an_address_that_a_killed_master_still_has_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = socket.create_server((HOST, 0))
    address = options.read_address(f"{HOST}:{taken.getsockname()[1]}")
    # The processes of its port have ended when it is tried again.
    monkeypatch.setattr(options, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _s: taken.close()))
    with address.bind() as bound:
        assert bound.getsockname()[1] == address.port


def test_processes_of_the_port_that_are_killed_are_started_again_and_all_end_with_their_master(nodes: NodeYard) -> None:
    port = Port(free_port())
    master = nodes.master("m1", app=APP, arguments=("--http", f"{HOST}:{port.number}"), ready_text="leading")

    def whole_without(gone: set[psutil.Process]) -> PortProcesses | None:
        """The processes, when they are complete, none is one of ``gone``, and the port answers."""
        found = port_processes(master)
        try:
            return found if found and not gone & {*found} and port.get("/api/health").status == 200 else None
        except OSError:
            return None

    family = wait_until(lambda: whole_without(set()), description="the port to answer")
    assert family is not None
    for kinds in ({"keeper"}, {"serving"}, {"spare"}, {"keeper", "serving"}):
        struck = {process for kind, process in family._asdict().items() if kind in kinds}
        for process in struck:
            process.kill()
        family = wait_until(partial(whole_without, struck), description=f"others than the {kinds} to be there")
        assert family is not None
    assert "the process of the HTTP port ended; it is started again" in master.logs()
    assert master.logs().count("the keeper of the HTTP port ended; another one takes its place") == 2
    master.kill_main()
    assert not psutil.wait_procs([*family], timeout=20)[1]
    with pytest.raises(ConnectionRefusedError):
        port.get("/api/health")


def test_a_master_whose_port_is_gone_for_good_says_so_once_and_ends_in_order(nodes: NodeYard) -> None:
    port = Port(free_port())
    master = nodes.master("m1", app=APP, arguments=("--http", f"{HOST}:{port.number}"), ready_text="leading")
    family = wait_until(lambda: port_processes(master), description="the processes of the port")
    assert family is not None
    os.killpg(family.keeper.pid, signal.SIGKILL)
    said = "all processes of the HTTP port were ended"
    wait_until(lambda: said in master.logs(), description="the master to say it")
    master.send(signal.SIGHUP)
    assert master.terminate() == 0
    assert master.logs().count(said) == 1


REQUEST = b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
def certificate(tmp_path: Path, authority: trustme.CA) -> Certificate:
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    issued = authority.issue_cert(HOST)
    issued.cert_chain_pems[0].write_to_path(chain)
    issued.private_key_pem.write_to_path(key)
    return Certificate(chain, key)


def answer_over_tls(port: Port, authority: trustme.CA) -> bytes:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with context.wrap_socket(port.dial(), server_hostname=HOST) as dialled:
        dialled.sendall(REQUEST)
        return dialled.recv(1000)


def test_it_speaks_tls(valkey: EmbeddedServer, certificate: Certificate, authority: trustme.CA) -> None:
    app = app_of(valkey.url)
    with port_of(app, certificate=certificate) as port:
        assert answer_over_tls(port, authority).startswith(b"HTTP/1.1 200 ")
        with port.dial() as dialled:
            # Without TLS it gets no answer of the application.
            dialled.sendall(REQUEST)
            assert not dialled.recv(1000).startswith(b"HTTP/1.1 200 ")
    app.bridge.client.close()


def test_a_process_that_is_started_again_has_the_certificate_that_its_master_read(
    nodes: NodeYard, certificate: Certificate, authority: trustme.CA
) -> None:
    port = Port(free_port())
    files = ("--http-cert", str(certificate.cert), "--http-key", str(certificate.key))
    master = nodes.master("m1", app=APP, arguments=("--http", f"{HOST}:{port.number}", *files), ready_text="leading")
    family = wait_until(lambda: port_processes(master), description="the processes of the port")
    assert family is not None
    # As in the middle of a renewal
    certificate.cert.unlink()
    family.serving.kill()
    # What a client sends meanwhile waits in the backlog of the socket.
    assert answer_over_tls(port, authority).startswith(b"HTTP/1.1 200 ")
    assert "Traceback" not in master.logs()


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01"])
def test_a_handshake_that_does_not_end_is_cut_off(
    valkey: EmbeddedServer, certificate: Certificate, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(connections, "HEADERS_S", 0.5)
    app = app_of(valkey.url)
    with port_of(app, certificate=certificate) as port, port.dial() as dialled:
        # asyncio's own limit is as long as this socket waits.
        dialled.settimeout(50)
        dialled.sendall(begun)
        assert dialled.recv(1000) == b""
    app.bridge.client.close()


def test_handshakes_that_do_not_end_count_as_connections(
    valkey: EmbeddedServer, certificate: Certificate, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEADERS_S", 600.0)
    monkeypatch.setattr(serving, "REFUSED", 1)
    app = app_of(valkey.url, bridge_http_max_connections=2)
    with port_of(app, certificate=certificate) as port:
        silent = [port.dial() for _ in range(3)]
        with port.dial() as dialled:
            # No file is left to keep it in.
            assert dialled.recv(1000) == b""
        for one in silent:
            one.close()

        def answered() -> bool:
            with suppress(OSError):
                return answer_over_tls(port, authority).startswith(b"HTTP/1.1 200 ")
            return False

        wait_until(answered, description="an answer, when the others are gone")
    app.bridge.client.close()


def test_a_certificate_that_does_not_fit_its_key_is_one_line(tmp_path: Path, authority: trustme.CA) -> None:
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    authority.issue_cert(HOST).cert_chain_pems[0].write_to_path(chain)
    authority.issue_cert(HOST).private_key_pem.write_to_path(key)
    for certificate in (Certificate(chain, key), Certificate(key, chain), Certificate(chain)):
        with pytest.raises(ConfigurationError, match="not a certificate and its key"):
            certificate.load()


def test_sighup_reads_the_tokens_again_and_ends_nothing(nodes: NodeYard, tmp_path: Path) -> None:
    port = Port(free_port(), secret_of("later"))
    file = token_file(tmp_path, {"name": "first", "verbs": ["push"]})
    arguments = ("--http", f"{HOST}:{port.number}", "--http-tokens", str(file))
    master = nodes.master("m1", app=APP, arguments=arguments, ready_text="leading")
    assert port.post("/api/messages", {"ticket_id": "T"}).status == 401
    token_file(tmp_path, {"name": "later", "verbs": ["push"]})
    master.send(signal.SIGHUP)
    wait_until(lambda: port.post("/api/messages", {"ticket_id": "T"}).status == 201, description="the new token")


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(ConfigurationError, match=rf"--http needs {missing}: pip install 'ticket-bridge\[http\]'"):
        options.require_extra()
