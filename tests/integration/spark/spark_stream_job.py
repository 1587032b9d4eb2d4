"""A streaming query from a folder of Parquet files into a stream; as a program, it is a process that tests kill.

python -m tests.integration.spark.spark_stream_job URL STREAM FOLDER CHECKPOINT HIGH_WATER
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bridge.spark.job.session import local_session
from bridge.spark.write.order import by_ticket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def start(
    session: SparkSession, url: str, stream: str, folder: str, checkpoint: str, high_water: str
) -> StreamingQuery:
    """Starts the query, which ends when all files of the folder are in the stream."""
    rows = (
        session.readStream.schema("ticket_id string, seq long, payload string")
        .option("maxFilesPerTrigger", 1)
        .parquet(folder)
    )
    return (
        by_ticket(rows, key="ticket_id", partitions=2)
        .writeStream.format("redisstream")
        .option("checkpointLocation", checkpoint)
        .options(url=url, stream=stream, seqColumn="seq", fields="seq,payload", chunkSize="50", highWater=high_water)
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    made = local_session("a query that dies", master="local[2]")
    start(made, *sys.argv[1:]).awaitTermination()
