"""Spark's own CRC-32 gives the partitions that the page on messages says."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from tests.unit.routing.test_partitions import vectors


def test_spark_gives_the_partitions_of_the_page(session: SparkSession) -> None:
    known = vectors()
    rows = session.createDataFrame([(ticket,) for ticket, *_ in known], "ticket_id STRING")
    crc = fn.crc32(fn.encode("ticket_id", "UTF-8"))
    found = rows.select("ticket_id", crc, fn.expr("crc32(ticket_id) % 4"), fn.expr("crc32(ticket_id) % 16")).collect()
    assert [tuple(row) for row in found] == known
