"""The checkpoint of a push that follows a folder: beside what Spark keeps there, which stream it tells of.

Spark's own checkpoint knows the folder and not where its rows went: with another stream a push would go on there in
the middle, and everything before would be missing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bridge.routing.errors import ConfigurationError
from bridge.spark.wire.address import database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE = "stream.json"


def claim(session: SparkSession, checkpoint: str, *, url: str, stream: str) -> None:
    """Make this the checkpoint of pushes into one stream, in any file system that Spark writes to.

    Of the server only the number of the database is kept, as an archive keeps it: its address may change. One that was
    begun before this was kept takes the first stream that comes. Raises ``ConfigurationError`` for another stream's.
    """
    asked = {"stream": stream, "database": database(url)}
    assert session._jvm is not None
    hadoop: Any = session._jvm.org.apache.hadoop.fs
    place = hadoop.Path(checkpoint, _FILE)
    files = place.getFileSystem(session._jsc.hadoopConfiguration())
    if not files.exists(place):
        fresh = hadoop.Path(checkpoint, f".{_FILE}")
        writing = files.create(fresh, True)
        writing.write(bytearray(f"{json.dumps(asked)}\n".encode()))
        writing.close()
        # There as a whole or not at all.
        files.rename(fresh, place)
        return
    opened = files.open(place)
    text = session._jvm.org.apache.commons.io.IOUtils.toString(opened, "UTF-8")
    opened.close()
    try:
        kept = json.loads(text)
        of = f"pushes into stream {kept['stream']!r} in database {kept['database']}"
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(
            f"{place} does not tell of a push; is {checkpoint} a --checkpoint? Another one begins anew"
        ) from None
    if kept != asked:
        raise ConfigurationError(f"the checkpoint {checkpoint} is of {of}; another stream needs another --checkpoint")
