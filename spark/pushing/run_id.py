"""The name of a push, made from its content and its stream, so that the same push is recognised when it runs again.

A push that failed half way is simply started again, and a cron job that runs twice does no harm: the same content,
mapped in the same way into the same stream, has the same name, and rows that a push of that name has written are not
written again. The name of the file and its times do not count: a copy, or a second download, is the same log. Settings
of the write (partitions, chunk sizes, the order in which tickets interleave) do not count either: a second push with
other settings must be noticed, and not be taken for another push.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from bridge.routing.errors import InputError
from bridge.spark.job.log_columns import MALFORMED
from bridge.spark.pushing.messages import USUAL_SEQUENCE, Mapping

#: Hexadecimal digits of a name.
_DIGITS = 32
#: The version of the recipe below. It is part of the name, so that another recipe makes other names.
_RECIPE = 2


def run_id_of(
    session: SparkSession, events: DataFrame, mapping: Mapping, *, stream: str, below: str = "/"
) -> str | None:
    """The name of a push of these events; None if they are not made of files, since then their content is not known.
    ``below``: the path below which the names of folders are values of columns.

    Reads every local file once. For files elsewhere (HDFS, object stores) it takes path, size and time of modification.
    Raises ``InputError`` for a file that was removed.
    """
    files = sorted(events.inputFiles())
    if not files:
        return None
    contents = [_content(session, uri) for uri in files]
    shared = _folder(files)
    if len(files) > 1:
        # In a folder, names count: they may give the order of files, or the value of a column.
        contents = [[uri[len(shared) :], *content] for uri, content in zip(files, contents, strict=True)]
    columns = [name for name in events.columns if name != MALFORMED]
    what = {"recipe": _RECIPE, "files": contents, "columns": columns, "stream": stream, **_meaning(mapping, columns)}
    values = _values(shared, below, columns)
    if values:
        what["values"] = values
    text = json.dumps(what, sort_keys=True, ensure_ascii=True)
    return f"push-{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"


def _meaning(mapping: Mapping, columns: list[str]) -> dict[str, Any]:
    """The part of the mapping that decides the content of entries. ``order`` counts only if it makes the sequence."""
    meaning = asdict(mapping)
    # A push without them has the name that it had before there were such columns.
    for name in ("due_column", "hold_column"):
        if meaning[name] is None:
            del meaning[name]
    if mapping.seq is not None or USUAL_SEQUENCE in columns:
        del meaning["order"]
    return meaning


def _content(session: SparkSession, uri: str) -> list[Any]:
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return _digest(Path(unquote(parts.path)))
    assert session._jvm is not None
    path = session._jvm.org.apache.hadoop.fs.Path(uri)
    status = path.getFileSystem(session._jsc.hadoopConfiguration()).getFileStatus(path)
    return [uri, int(status.getLen()), int(status.getModificationTime())]


def _digest(path: Path) -> list[Any]:
    try:
        with path.open("rb") as file:
            return [hashlib.file_digest(file, "sha256").hexdigest()]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _values(folder: str, below: str, columns: list[str]) -> list[str]:
    """The parts ``column=value`` of a local folder that all files share: a part of the rows, but not of the files."""
    place = Path(unquote(urlsplit(folder).path))
    parts = place.relative_to(below).parts if place.is_relative_to(below) else ()
    return [part for part in parts if part.partition("=")[0] in columns]


def _folder(files: list[str]) -> str:
    """The common folder of all files, as the text with which each of them begins."""
    first, last = files[0], files[-1]
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[: first.rfind("/", 0, same) + 1]
