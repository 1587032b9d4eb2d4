"""A lane over TLS, and passwords that nothing shows."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import trustme

from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST
from bridge.testing.nodes.node import broker_environment
from bridge.testing.nodes.process import python_module
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import APP, QUICK, LaneUnderTest
from tests.integration.proxies import Proxy
from tests.integration.servers import run_command


@pytest.fixture
def tls_proxy(authority: trustme.CA, own_server: EmbeddedServer) -> Iterator[Proxy]:
    """TLS in front of the server: the embedded builds have none of their own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(context)
    with Proxy(own_server.port, tls=context) as proxy:
        yield proxy


def test_a_whole_lane_speaks_tls(
    authority: trustme.CA, tls_proxy: Proxy, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    place = f"rediss://{HOST}:{tls_proxy.port}/0"
    url = f"{place}?ssl_cert_reqs=required&ssl_ca_certs={ca}"
    with closing(ProcessYard(tmp_path, url)) as yard:
        lane = LaneUnderTest(yard, own_server, tmp_path)
        lane.master("m1", wait=False)
        worker = lane.worker("w1")
        lane.wait_consumers(1)
        lane.push_many(10, 5)
        lane.push("S", {"n": 1}, "counter.add")
        lane.wait_done(51)
        lane.assert_logs(10, 5)

        def command(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
            environment = broker_environment(url)
            return run_command(environment, *arguments)

        shown = command(url, "status")
        assert worker.hostname() in shown.stdout
        assert f"rediss://{HOST}:{tls_proxy.port}/0" in shown.stdout
        rows = tmp_path / "rows.jsonl"
        rows.write_text('{"ticket_id": "P", "payload": {"n": 0}}\n')
        assert command(url, "push", str(rows)).returncode == 0
        lane.wait_done(52)

        # A client that does not trust the certificate, or does not say whether to check it, gets an error of one line
        stranger = tmp_path / "stranger.pem"
        trustme.CA().cert_pem.write_to_path(str(stranger))
        for wrong, said, code in (
            (f"{place}?ssl_cert_reqs=required&ssl_ca_certs={stranger}", "certificate verify failed", 1),
            (place, "add ?ssl_cert_reqs=required", 2),
            (place.replace("rediss", "redis"), "cannot reach Redis", 1),
        ):
            refused = command(wrong, "status")
            assert refused.returncode == code, refused.stderr
            assert said in refused.stderr
            assert len(refused.stderr.splitlines()) == 1


SECRET = "sesame0451"


@pytest.fixture
def secret_server(valkey_binary: Path, tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server with the user bridge-any, whose password is `SECRET`. The tests themselves log in without a password."""
    with EmbeddedServer(binary=valkey_binary, data_dir=tmp_path / "server", append_only=False) as server:
        with server.client() as admin:
            admin.execute_command("ACL", "SETUSER", "any", "on", "+@all", "~*", "&*", f">{SECRET}")
        yield server


#: URLs with the password, both working and not.
LEAKY = {
    "wrong": "redis://any:x{secret}@{host}:{port}/0",
    "closed": "redis://any:{secret}@{host}:1/0",
    "slash": "redis://any:{secret}/{secret}@{host}:{port}/0",
    "hash": "redis://any:{secret}#{secret}@{host}:{port}/0",
    "colon": "redis://any:{secret}:{secret}@{host}:{port}/0",
    "at": "redis://any:{secret}@{secret}@{host}:{port}/0",
    "scheme": "reddis://any:{secret}@{host}:{port}/0",
    "no place": "redis://any:{secret}",
    "query": "redis://{host}:{port}/0?username=any&password=x{secret}",
    "bare tls": "rediss://any:{secret}@{host}:{port}/0",
    "sentinel": "sentinel://any:{secret}@{host}:{port}/0",
}


@pytest.mark.parametrize("case", LEAKY)
def test_no_error_shows_a_password(case: str, secret_server: EmbeddedServer, tmp_path: Path) -> None:
    url = LEAKY[case].format(secret=SECRET, host=HOST, port=secret_server.port)
    with closing(ProcessYard(tmp_path, url)) as yard:
        nodes = [
            yard.worker("w1", app=APP, arguments=("--concurrency=1", *QUICK, "--loglevel=DEBUG"), wait=False),
            yard.master("m1", app=APP, arguments=("--loglevel=DEBUG",), wait=False),
            yard.process(
                "status", python_module("bridge", "-A", APP, "status"), env=broker_environment(url), wait=False
            ),
        ]
        for node in nodes:
            wait_until(
                lambda node=node: not node.running or "Trying again in" in node.logs(),  # type: ignore[misc]
                description=f"{node.name()} to say what is wrong",
                timeout_s=90,
            )
        for node in nodes:
            said = node.logs()
            assert said.strip(), node.name()
            assert SECRET not in said, f"{node.name()}: {said}"


def test_nothing_shows_the_password_of_a_lane_at_work(secret_server: EmbeddedServer, tmp_path: Path) -> None:
    url = f"redis://any:{SECRET}@{HOST}:{secret_server.port}/0"
    with closing(ProcessYard(tmp_path, url)) as yard:
        lane = LaneUnderTest(yard, secret_server, tmp_path)
        yard.master("m1", app=APP, arguments=("--loglevel=DEBUG",), env=lane.env, wait=False)
        worker = lane.worker("w1", "--concurrency=2", "-E", "--loglevel=DEBUG")
        lane.wait_consumers(1)
        lane.push_many(5, 20)
        lane.push("D", {"n": 0, "until": 9}, "counter.flaky")
        lane.wait_done(101)
        environment = broker_environment(url)
        for arguments in (["status"], ["status", "--json"], ["ticket", "show", "D"], ["dead", "list", "--json"]):
            done = run_command(environment, *arguments)
            assert done.returncode == 0
            assert SECRET not in done.stdout + done.stderr
        # What ps shows
        for node in yard.nodes:
            assert node.pid is not None
            main = psutil.Process(node.pid)
            for process in (main, *main.children(recursive=True)):
                assert SECRET not in " ".join(process.cmdline())
        # Lost connections, and a password that was changed
        with secret_server.client() as admin:
            admin.execute_command("ACL", "SETUSER", "any", "resetpass", ">another")
            admin.client_kill_filter(_type="normal", skipme=True)
            admin.client_kill_filter(_type="pubsub")
        wait_until(
            lambda: "Trying again in" in worker.logs(),
            description="the worker to meet the changed password",
        )
        with secret_server.client() as admin:
            admin.execute_command("ACL", "SETUSER", "any", "resetpass", f">{SECRET}")
        lane.push("T0", {"n": 20})
        lane.wait_done(102)
        for node in yard.nodes:
            assert SECRET not in node.logs()
        everything = json.dumps([lane.redis.xrange(lane.keys.dead), lane.redis.hgetall(lane.keys.consumers)])
        assert SECRET not in everything
