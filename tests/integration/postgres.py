"""A real PostgreSQL as a child process, for tests; they are skipped where the machine has none."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from bridge.stack.orphan_stopper import OrphanStopper
from bridge.stack.ports import HOST, free_port
from bridge.testing.waiting import wait_until

#: Where Debian's packages have the programs of a server. They are not in PATH, since versions may be side by side.
DEBIAN = Path("/usr/lib/postgresql")


def program_path(name: str, folder: Path = DEBIAN) -> str | None:
    """Where a program of PostgreSQL is: in PATH, or that of the newest version in ``folder``. None: nowhere."""
    versions = sorted((int(path.name) for path in folder.glob("*") if path.name.isdigit()), reverse=True)
    places = [*os.get_exec_path(), *(f"{folder}/{version}/bin" for version in versions)]
    return shutil.which(name, path=os.pathsep.join(places))


class Postgres:
    """One server with an empty database; a context manager that removes it."""

    def __init__(self) -> None:
        self.port = free_port()
        #: As SQLAlchemy writes it.
        self.url = f"postgresql+psycopg://test@{HOST}:{self.port}/postgres"

    def __enter__(self) -> Self:
        programs = [program_path(name) for name in ("initdb", "postgres")]
        if None in programs:
            pytest.skip(f"needs PostgreSQL: there is no initdb or postgres in PATH or {DEBIAN}/VERSION/bin")
        initdb, postgres = (str(program) for program in programs)
        self._folder = Path(tempfile.mkdtemp(prefix="bridge-postgres-"))
        # It refuses to run as root.
        user = "nobody" if os.geteuid() == 0 else None
        if user is not None:
            os.chown(self._folder, pwd.getpwnam(user).pw_uid, -1)
        data = self._folder / "data"
        made = [initdb, "--no-sync", "-A", "trust", "-U", "test", "--locale=C", "-E", "UTF8", "-D", str(data)]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL, user=user, cwd=self._folder)
        options = ["-D", str(data), "-p", str(self.port), "-h", HOST, "-k", str(self._folder), "-F"]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [postgres, *options], stdout=log, stderr=log, user=user, cwd=self._folder, start_new_session=True
            )
        self._stopper = OrphanStopper(self._process.pid)
        wait_until(self._answers, description="PostgreSQL to answer", timeout_s=180)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            # With SIGTERM it waits for its clients, with SIGINT it does not.
            self._process.send_signal(2)
            self._process.wait(30)
        finally:
            self._process.kill()
            self._stopper.release()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError((self._folder / "log").read_text(errors="replace"))
        engine = create_engine(self.url, poolclass=NullPool)
        try:
            with engine.connect() as connection:
                return bool(connection.scalar(text("SELECT 1")))
        except OperationalError:
            return False
