"""Commands in shells and under supervisors of other people: each ends as elsewhere, or with one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from tests.conftest import emptied

APP = """
import os
from celery import Celery
import bridge

app = Celery("shop", broker=os.environ["SHOP_URL"])
bridge.install(app)

@app.task(bind=True, name="shop.work")
def work(self, ticket_id, payload):
    pass
"""
KEYS = LaneKeys("ticket_stream", "concurrency_stream_group")
TICKET = "\N{CJK UNIFIED IDEOGRAPH-7968}\N{SEE-NO-EVIL MONKEY}"

#: A name -> what the shell does before the command, and the variables of the command.
SHELLS = {
    "C": ("", {"LC_ALL": "C", "PYTHONUTF8": "0"}),
    "POSIX": ("", {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "ascii": ("", {"PYTHONIOENCODING": "ascii:surrogateescape"}),
    "no input": ("exec <&-; ", {}),
    "no folder": ("mkdir gone; cd gone; rmdir ../gone; ", {}),
    "full disk": ("exec >/dev/full; ", {}),
}
#: Commands, with the shells in which each was once wrong. The others are tried in the long tier.
COMMANDS = {
    "--version": {"full disk"},
    "-A shop dead list": {"C", "ascii"},
    "-A shop dead list --ticket $'\\xff'": {"POSIX"},
    "-A shop dead drop --all": {"no input"},
    "-A shop delayed list": set(),
    "-A shop delayed cancel --all": set(),
    "-A shop push - --format json": {"no input"},
    "-A shop ticket list": {"no folder"},
    "-A shop status": set(),
    "-A shop pending": set(),
    "-A shop audit": set(),
    "-A shop status --help": set(),
}


@pytest.fixture
def folder(valkey_of_session: EmbeddedServer, tmp_path: Path) -> Iterator[Path]:
    """A folder with an app, whose lane has a dead letter and a delayed message."""
    server = emptied(valkey_of_session)
    redis: Redis = server.client()
    redis.xgroup_create(KEYS.stream, KEYS.group, mkstream=True)
    letter: dict[Any, Any] = {
        "message_id": "1-1",
        "ticket_id": TICKET,
        "task": "shop.work",
        "reason": "why",
        "attempts": "1",
    }
    redis.xadd(KEYS.dead, letter | {"payload": TICKET})
    redis.xadd(KEYS.stream, {"ticket_id": TICKET, "due": "9999999999999"})
    (tmp_path / "shop.py").write_text(APP)
    yield tmp_path
    emptied(server)


@pytest.mark.parametrize(
    ("shell", "command"),
    [
        pytest.param(shell, command, id=f"{shell}: {command}", marks=() if shell in wrong else pytest.mark.long)
        for command, wrong in COMMANDS.items()
        for shell in SHELLS
    ],
)
def test_a_command_ends_as_elsewhere_or_with_one_line(
    shell: str, command: str, folder: Path, valkey_of_session: EmbeddedServer
) -> None:
    before, variables = SHELLS[shell]
    program = Path(sys.executable).with_name("bridge")
    done = subprocess.run(
        ["bash", "-c", f"{before}exec {program} {command}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "SHOP_URL": valkey_of_session.url, **variables},
        capture_output=True,
        timeout=120,
        check=False,
    )
    errors = done.stderr.decode(errors="replace")
    assert "Traceback" not in errors
    assert done.returncode in (0, 1, 2)
    # Usage may stand before it
    assert errors.count("Error: ") == (done.returncode != 0)
    if "xff" in command:
        assert "cannot be written as UTF-8" in errors
    if shell != "full disk" and command == "-A shop dead list":
        assert "1-1" in done.stdout.decode(errors="replace")
