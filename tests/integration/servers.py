"""Servers with users, and lanes in which every role has a user of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Self
from uuid import uuid4

import redis
from redis import Redis

from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST
from bridge.testing.nodes import preloaded
from bridge.testing.nodes.node import broker_environment
from bridge.testing.nodes.process import ROOT, python_module
from tests.integration.lanes import APP
from tests.integration.proxies import Proxy

#: The keys of the effects of `tests.apps.counter`.
OWN_KEYS = ("log:*", "sum:*", "a-string:*")
PASSWORDS = {"producer": "pw-producer", "master": "pw-master", "worker": "pw-worker", "operator": "pw-operator"}


def url_of(role: str, port: int) -> str:
    """The broker's URL for the user of a role."""
    return f"redis://bridge-{role}:{PASSWORDS[role]}@{HOST}:{port}/0"


def rules_of(role: str, *options: str) -> list[str]:
    """The arguments of the command that ``bridge acl`` prints for the app of the tests."""
    return list(_printed_rules(role, *options))


@cache
def _printed_rules(role: str, *options: str) -> tuple[str, ...]:
    """Each is printed once for a process of the tests: the command is a process of its own."""
    done = run_command(broker_environment("redis://localhost:1/0"), "acl", role, *options)
    assert done.returncode == 0, done.stderr
    return tuple(done.stdout.split())


def make_user(admin: Redis, role: str, *options: str) -> None:
    """Creates the user of ``role`` on the server, with the rules of ``bridge acl`` and a password."""
    arguments = rules_of(role, *options)
    assert arguments[:3] == ["ACL", "SETUSER", f"bridge-{role}"]
    admin.execute_command(*arguments, f">{PASSWORDS[role]}")


def run_command(environment: dict[str, str], *arguments: str, app: str = APP) -> subprocess.CompletedProcess[str]:
    """Runs one command of the bridge, without the bridge's variables of this process's environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(tuple(preloaded.READ_LATER))}
    return preloaded.run(python_module("bridge", "-A", app, *arguments), cwd=ROOT, env={**kept, **environment})


class Watched:
    """Collects the commands of each role from MONITOR. A context manager.

    The role follows from the address of the connection, since each role has its own proxy with an address of its own.
    (The port of a closed connection may be that of another role's later.) MONITOR shows the commands of a script right
    behind its call, as ``lua``. At the end it waits until it has seen all commands that were sent before.
    """

    def __init__(self, server: EmbeddedServer, proxies: Mapping[str, Proxy]) -> None:
        self.commands: dict[str, set[str]] = {role: set() for role in proxies}
        self._roles = {proxy.source: role for role, proxy in proxies.items()}
        assert len(self._roles) == len(proxies)
        #: The last command, after which all others have been seen.
        self._last = uuid4().hex
        self._seen_all = threading.Event()
        self._client = server.client(decode_responses=True)
        self._monitor = self._client.monitor()
        self._thread = threading.Thread(target=self._listen, name="test-monitor", daemon=True)

    def __enter__(self) -> Self:
        self._monitor.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.echo(self._last)
        assert self._seen_all.wait(120), "MONITOR did not show all commands"
        with suppress(OSError, AttributeError):
            self._monitor.connection._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._client.close()

    def _listen(self) -> None:
        caller = None
        with suppress(redis.RedisError, OSError, ValueError):
            for shown in self._monitor.listen():
                arguments = shown["command"].split(" ", 2)
                command = arguments[0].lower()
                if (
                    command in ("xgroup", "xinfo", "client", "command", "config", "memory", "script")
                    and len(arguments) > 1
                ):
                    command = f"{command}|{arguments[1].lower()}"
                if command == "echo" and self._last in arguments[1]:
                    self._seen_all.set()
                if shown["client_type"] != "lua":
                    caller = self._roles.get(shown["client_address"])
                if caller is not None:
                    self.commands[caller].add(command)
