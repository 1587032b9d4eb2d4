"""The folder of an archive: its lane, the process that writes to it now, and which epochs are complete.

    OUT/history/date=2026-03-14/batch=7/part-….parquet       also OUT/dead/…, OUT/messages/…
    OUT/history/.epoch-7.new/…                               what is being written of an epoch
    OUT/history/.epoch-7/…                                   a whole epoch, whose folders are moved to their places
    OUT/_checkpoints/history/…                               Spark's: how far the archive has come
    OUT/_checkpoints/history.written/7                       the last epoch whose files are all in place
    OUT/_checkpoints/lane.json                               the lane of this archive
    OUT/_lock                                                held while an archive runs

An epoch's files of one date appear together, by one rename of their folder. So a folder that exists is complete. After
a crash, an epoch that was written as a whole is put in place and marked before anything is read, and Spark runs it
again without an effect: its entries may have left the stream meanwhile. Of any other epoch nothing is in place. Older
versions put each date in place at the end of the write, so their last epoch may be in place in part, without a mark:
then only the missing dates are written. So archived entries are never replaced by fewer.

Spark, Arrow, DuckDB and others ignore files and folders that begin with ``_`` or ``.`` when they read a table's folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from bridge.routing.errors import ConfigurationError, InputError

_CHECKPOINTS = "_checkpoints"
_LANE = "lane.json"
#: The folders of epochs that were written as a whole.
_WHOLE = ".epoch-*[0-9]"
#: The folder that Spark gives rows without a date.
NO_DATE = "__HIVE_DEFAULT_PARTITION__"


class ArchivePlace:
    """One archive, in a folder that this machine sees as a folder (a disk, or a mounted file system)."""

    def __init__(self, out: str) -> None:
        """Raises ``ConfigurationError`` for an address that is not a folder of this machine."""
        scheme, separator, path = out.partition("://")
        if separator and scheme != "file":
            raise ConfigurationError(
                f"an archive is written to a folder, not to {scheme}://: renaming a folder must be one step; write it "
                "to a disk and copy the folder"
            )
        self.root = Path(path if separator else out).absolute()

    @contextmanager
    def held(self) -> Iterator[None]:
        """While the block runs, no other process archives into this folder.

        The kernel holds the lock, and ends it with this process. Raises ``ConfigurationError`` when it is
        held, and ``InputError`` for a folder that cannot be written to.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.root / "_lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"cannot write to {self.root}: {error.strerror}") from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.read(lock, 200).decode(errors="replace").strip() or "another process"
                raise ConfigurationError(
                    f"{holder} archives into {self.root} already; wait for it, or stop it"
                ) from None
            os.ftruncate(lock, 0)
            os.write(lock, f"process {os.getpid()} on {platform.node()}\n".encode())
            yield
        finally:
            os.close(lock)

    def claim(self, stream: str, group: str, tables: list[str], *, database: int) -> None:
        """Makes this the archive of one lane.

        Only the number of the database is kept of the server's address: the rest may change. Raises
        ``ConfigurationError`` when the folder belongs to another lane, when the note of its lane is damaged, or when a
        table has files but no checkpoint: all would be archived a second time.
        """
        lane: dict[str, str | int] = {"stream": stream, "group": group, "database": database}
        checkpoints = self.root / _CHECKPOINTS
        checkpoints.mkdir(exist_ok=True)
        known = checkpoints / _LANE
        try:
            kept = json.loads(known.read_text()) if known.exists() else {}
            # An older folder did not keep the database: it takes the present one.
            found = lane | kept
        except (ValueError, TypeError):
            raise ConfigurationError(
                f"cannot read {known}: remove it if this is the archive of stream {stream!r}, group {group!r} "
                f"in database {database}"
            ) from None
        if found != lane:
            raise ConfigurationError(
                f"{self.root} is the archive of stream {found['stream']!r}, group {found['group']!r} in database "
                f"{found['database']}; choose another folder"
            )
        if kept != lane:
            fresh = checkpoints / f".{_LANE}"
            fresh.write_text(json.dumps(lane) + "\n")
            fresh.replace(known)
        for table in tables:
            files = chain.from_iterable(map(self.table(table).glob, ("date=*/batch=*", _WHOLE)))
            if not self.checkpoint(table).exists() and any(files):
                raise ConfigurationError(
                    f"{self.table(table)} has files but {self.checkpoint(table)} is gone: archive into another folder, "
                    "or all rows would be archived twice"
                )

    def tidy(self, table: str) -> None:
        """Removes unfinished files of a run that was killed, and finishes its last epoch if that was written as a
        whole. Only while the folder is held.
        """
        folder = self.table(table)
        for left in [*folder.glob(".epoch-*.new"), *folder.glob(".spark-staging-*"), folder / "_temporary"]:
            shutil.rmtree(left, ignore_errors=True)
        for whole in folder.glob(_WHOLE):
            self._put_in_place(table, int(whole.name.rpartition("-")[2]))

    def table(self, name: str) -> Path:
        """The folder of a table's files."""
        return self.root / name

    def unfinished(self, table: str, epoch: int) -> Path:
        """The folder to write an epoch to, before `finish`."""
        return self.table(table) / f".epoch-{epoch}.new"

    def finish(self, table: str, epoch: int) -> None:
        """Puts an epoch in place that was written as a whole. From the first rename on, a crash loses nothing of it."""
        self.unfinished(table, epoch).rename(self._whole(table, epoch))
        self._put_in_place(table, epoch)

    def checkpoint(self, table: str) -> Path:
        """Spark's checkpoint of the query that writes a table."""
        return self.root / _CHECKPOINTS / table

    def is_whole(self, table: str, epoch: int) -> bool:
        """Whether all files of an epoch are written."""
        return (self._marks(table) / str(epoch)).exists()

    def dates_of(self, table: str, epoch: int) -> list[str]:
        """The dates whose files of this epoch are written."""
        return [folder.parent.name.partition("=")[2] for folder in self.table(table).glob(f"date=*/batch={epoch}")]

    def mark(self, table: str, epoch: int) -> None:
        """Notes that all files of ``epoch`` are written. Spark runs no earlier epoch again, so one mark is enough."""
        marks = self._marks(table)
        marks.mkdir(exist_ok=True)
        (marks / str(epoch)).touch()
        for old in marks.iterdir():
            if old.name != str(epoch):
                old.unlink(missing_ok=True)

    def _whole(self, table: str, epoch: int) -> Path:
        return self.table(table) / f".epoch-{epoch}"

    def _put_in_place(self, table: str, epoch: int) -> None:
        whole = self._whole(table, epoch)
        for folder in sorted(whole.glob("date=*/batch=*")):
            place = self.table(table) / folder.relative_to(whole)
            place.parent.mkdir(exist_ok=True)
            # An older version may have written it since the crash.
            if not place.exists():
                folder.rename(place)
        self.mark(table, epoch)
        shutil.rmtree(whole)

    def _marks(self, table: str) -> Path:
        return self.root / _CHECKPOINTS / f"{table}.written"


def lane_of(archive: str) -> tuple[str, str] | None:
    """The stream and the group of an archive; None where that is not known: a copy of its tables, or no folder of this
    machine.
    """
    scheme, separator, path = archive.partition("://")
    if separator and scheme != "file":
        return None
    try:
        kept = json.loads((Path(path if separator else archive) / _CHECKPOINTS / _LANE).read_text())
        return str(kept["stream"]), str(kept["group"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
