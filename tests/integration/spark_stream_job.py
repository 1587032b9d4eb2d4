"""A streaming query from a folder of Parquet files into a stream: a process that tests kill.

python -m tests.integration.spark_stream_job URL STREAM FOLDER CHECKPOINT HIGH_WATER
"""

from __future__ import annotations

import sys

from bridge.spark.job.session import local_session
from bridge.spark.write.order import by_ticket


def main(url: str, stream: str, folder: str, checkpoint: str, high_water: str) -> None:
    """Runs until all files of the folder are in the stream."""
    session = local_session("a query that dies", master="local[2]")
    rows = (
        session.readStream.schema("ticket_id string, seq long, payload string")
        .option("maxFilesPerTrigger", 1)
        .parquet(folder)
    )
    query = (
        by_ticket(rows, key="ticket_id", partitions=2)
        .writeStream.format("redisstream")
        .option("checkpointLocation", checkpoint)
        .options(url=url, stream=stream, seqColumn="seq", fields="seq,payload", chunkSize="50", highWater=high_water)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
