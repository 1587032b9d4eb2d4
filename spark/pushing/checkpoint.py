"""The checkpoint of a push that follows a folder: what it keeps beside Spark's files.

    stream.json    the stream of the push
    form.json      the form of its epochs: how many partitions they have, and the columns of the files
    begun          Spark's own checkpoint exists

Spark's own checkpoint knows the folder of the files, and not the stream. With another stream, a push would go on in the
middle of the folder, and earlier rows would be missing there.

Nor does it know the form, which comes from the machine's cores and from the files that were present at the start. An
epoch that was cut off must be written again in the same form: the guard refuses any other. Other epochs need not, and
see new columns from the next start on.

If Spark's checkpoint alone is removed, all files would be pushed again. The mark ``begun`` shows that it was there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.types import StructType

from bridge.routing.errors import ConfigurationError
from bridge.spark.job.progress import marked_epochs
from bridge.spark.wire.address import connect, database
from bridge.spark.write.options import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The name of the query that writes, and of the folder of Spark's checkpoint of it.
PUSH = "push"
_STREAM, _FORM, _BEGUN = "stream.json", "form.json", "begun"
#: The first file that Spark writes into its checkpoint.
_METADATA = f"{PUSH}/metadata"
_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class Form:
    """What each attempt at an epoch must have in common."""

    partitions: int
    #: The columns of the files.
    columns: StructType

    @property
    def text(self) -> str:
        return json.dumps({"partitions": self.partitions, "columns": self.columns.jsonValue()})

    @classmethod
    def of(cls, text: str) -> Form:
        kept = json.loads(text)
        return cls(kept["partitions"], StructType.fromJson(kept["columns"]))


class Checkpoint:
    """One checkpoint, in any file system that Spark writes to."""

    def __init__(self, session: SparkSession, folder: str) -> None:
        assert session._jvm is not None
        self._folder = folder
        self._hadoop: Any = session._jvm.org.apache.hadoop.fs
        self._texts: Any = session._jvm.org.apache.commons.io.IOUtils
        self._files = self._hadoop.Path(folder).getFileSystem(session._jsc.hadoopConfiguration())

    def claim(self, *, url: str, stream: str) -> None:
        """Makes this the checkpoint of pushes into one stream.

        Only the number of the database is kept of the server's address: the rest may change. Raises
        ``ConfigurationError`` for the checkpoint of another stream, and for one without Spark's part.
        """
        if self._has(_BEGUN) and not self._has(_METADATA):
            raise ConfigurationError(
                f"{self._path(PUSH)} is gone: put it back, or name another --checkpoint to push all files again"
            )
        asked = {"stream": stream, "database": database(url)}
        text = self._read(_STREAM)
        if text is None:
            self._write(_STREAM, json.dumps(asked))
            return
        try:
            kept = json.loads(text)
            of = f"pushes into stream {kept['stream']!r} in database {kept['database']}"
        except (ValueError, KeyError, TypeError):
            raise ConfigurationError(
                f"cannot read {self._path(_STREAM)}: {self._folder} is not the checkpoint of a push. Name another "
                "--checkpoint to start again"
            ) from None
        if kept != asked:
            raise ConfigurationError(
                f"the checkpoint {self._folder} is of {of}; another stream needs another --checkpoint"
            )

    def begin(self) -> None:
        """Notes that Spark's checkpoint exists, if it does. From then on it must be there."""
        if self._has(_METADATA) and not self._has(_BEGUN):
            self._write(_BEGUN, "")

    def form_cut_off(self, *, url: str, stream: str) -> Form | None:
        """The form of the epoch that was cut off; None: there is none, or the server has nothing of it."""
        metadata, form = self._read(_METADATA), self._read(_FORM)
        if metadata is None or form is None:
            return None
        query = self._parsed(_METADATA, metadata, lambda text: str(json.loads(text)["id"]))
        connection = connect(url)
        try:
            options = parse({"url": url, "stream": stream})
            last = max(marked_epochs(connection, options, query), default=None)
        finally:
            connection.disconnect()
        # Spark's note comes last: an epoch without it is written again, even if all its rows are in the stream.
        is_cut_off = last is not None and not self._has(f"{PUSH}/commits/{last}")
        return self._parsed(_FORM, form, Form.of) if is_cut_off else None

    def keep(self, form: Form) -> None:
        """Notes the form of the epochs that begin from now on. Only while no epoch is cut off."""
        if self._read(_FORM) != form.text:
            self._write(_FORM, form.text)

    def _parsed(self, name: str, text: str, parse: Callable[[str], _Parsed]) -> _Parsed:
        """What a file of the checkpoint says. Raises ``ConfigurationError`` for one that is damaged."""
        try:
            return parse(text)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigurationError(
                f"cannot read {self._path(name)}: put it back from a copy, or name another --checkpoint to push all "
                "files again"
            ) from None

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(self._folder, name)

    def _has(self, name: str) -> bool:
        return bool(self._files.exists(self._path(name)))

    def _read(self, name: str) -> str | None:
        if not self._has(name):
            return None
        opened = self._files.open(self._path(name))
        text: str = self._texts.toString(opened, "UTF-8")
        opened.close()
        return text

    def _write(self, name: str, text: str) -> None:
        fresh = self._path(f".{name}")
        writing = self._files.create(fresh, True)
        writing.write(bytearray(text.encode()))
        writing.close()
        # The file appears complete, or not. Not all file systems replace a file by renaming.
        self._files.delete(self._path(name), False)
        self._files.rename(fresh, self._path(name))
