"""Every program refuses at start, in one line, a server that evicts keys or is in cluster mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.app.finding import load_app
from bridge.master.process import Master
from bridge.routing.errors import ServerUnfit
from bridge.spark.wire.address import check_server
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.commands import CommandLine, command_line
from tests.integration.cli.test_bad_input import APP, QUICK, environment, error_of

STREAM = "ticket_stream"
SAID = {"cluster": "runs in cluster mode", "evicting": "has maxmemory-policy volatile-lru"}
OPTIONS = {"cluster": {"cluster-enabled": "yes"}, "evicting": {"maxmemory-policy": "volatile-lru"}}
KINDS = tuple(SAID)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["valkey_binary", "redis6_binary"])
def unfit_server(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Iterator[EmbeddedServer]:
    binary = request.getfixturevalue(request.param)
    with EmbeddedServer(binary=binary, data_dir=tmp_path / "server", append_only=False, options=OPTIONS[kind]) as made:
        if kind == "cluster":
            # A whole cluster of one node: it accepts every command whose keys are in one slot.
            with made.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
                wait_until(lambda: client.cluster("INFO")["cluster_state"] == "ok", description="the cluster to be up")
        yield made


@pytest.fixture
def shell(unfit_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, unfit_server.url) as made:
        yield made


def test_every_program_refuses_it_at_start_with_one_line(
    unfit_server: EmbeddedServer, kind: str, shell: CommandLine, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"ticket_id": "A"}\n')
    for command in (
        ["push", str(rows)],
        ["status"],
        ["ticket", "show", "A"],
        ["ticket", "park", "A"],
        ["consumer", "list"],
        ["dead", "list"],
        ["audit"],
        ["run"],
    ):
        result = shell(*command)
        assert result.exit_code == 1, command
        assert SAID[kind] in result.stderr, command
        assert len(result.stderr.splitlines()) == 1, command
    app = load_app(shell.app)
    for refused in (
        lambda: app.tasks["shop.update"].push("A", {}),
        lambda: Master(app),
        lambda: check_server(unfit_server.url, STREAM),
    ):
        with pytest.raises(ServerUnfit, match=SAID[kind]):
            refused()
    with unfit_server.client() as client:
        assert client.dbsize() == 0, "nothing was changed"


@pytest.mark.slow
@pytest.mark.parametrize("unfit_server", ["valkey_binary"], indirect=True)
def test_neither_worker_nor_master_starts_with_it(
    unfit_server: EmbeddedServer, kind: str, nodes: NodeYard, tmp_path: Path
) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "shop.py").write_text(APP)
    env = {**environment({}), "CELERY_BROKER_URL": unfit_server.url}
    worker = nodes.worker("w1", app="shop", cwd=folder, env=env, arguments=QUICK, wait=False)
    master = nodes.master("m1", app="shop", cwd=folder, env=env, wait=False)
    for node in (worker, master):
        assert node.wait(timeout_s=180) == 1
        assert SAID[kind] in error_of(node)
    with unfit_server.client() as client:
        assert client.dbsize() == 0, "nothing was changed"
