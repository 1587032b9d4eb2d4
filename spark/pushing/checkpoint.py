"""The checkpoint of a push that follows a folder: beside Spark's files, it keeps the stream of the push.

Spark's own checkpoint knows the folder of the files, and not the stream. With another stream, a push would go on in the
middle of the folder, and earlier rows would be missing there.
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
    """Makes this the checkpoint of pushes into one stream, in any file system that Spark writes to.

    Of the server's address only the number of the database is kept: the rest may change. A checkpoint of an older
    version has no stream. This stream is written into it. Raises ``ConfigurationError`` for the checkpoint of another
    stream.
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
        # The file appears complete, or not.
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
            f"cannot read {place}: {checkpoint} is not the checkpoint of a push. Name another --checkpoint to start "
            "again"
        ) from None
    if kept != asked:
        raise ConfigurationError(f"the checkpoint {checkpoint} is of {of}; another stream needs another --checkpoint")
