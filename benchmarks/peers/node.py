"""Peers that run in Node: whether they are there, and how one of their runs is made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from benchmarks.feed import Item
from benchmarks.stack import BenchmarkFailed, Stack
from bridge.routing.errors import TicketBridgeError

FOLDER = Path(__file__).parent


class NotInstalled(TicketBridgeError):
    """A peer that this machine does not have; what needs it is left out."""


def node(package: str) -> str:
    """The program, if it and ``package`` are there. Raises `NotInstalled`."""
    found = shutil.which("node")
    if found is None:
        raise NotInstalled(f"{package}: there is no node here")
    if not (FOLDER / "node_modules" / package).is_dir():
        raise NotInstalled(f"{package}: not installed; run: npm install --no-save --prefix benchmarks/peers")
    return found


def version(package: str) -> str:
    """Of an installed package. Raises `NotInstalled`."""
    node(package)
    found = json.loads((FOLDER / "node_modules" / package / "package.json").read_text(encoding="utf-8"))
    return str(found["version"])


def fill(stack: Stack, package: str, messages: Iterable[Item]) -> None:
    """Puts messages where the peer takes them from."""
    path = stack.folder / "messages.jsonl"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(item) + "\n" for item in messages)
    command = [node(package), str(FOLDER / f"{package}.mjs"), "fill", str(path)]
    environment = {**os.environ, **stack.environment}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if said.returncode:
        raise BenchmarkFailed(f"{package} took no messages: {said.stderr.strip()[-500:]}")


def work(stack: Stack, package: str, processes: int, *arguments: str) -> None:
    """Starts its workers."""
    for _ in range(processes):
        stack.start("pool", str(FOLDER / f"{package}.mjs"), "work", *arguments, program=node(package))
