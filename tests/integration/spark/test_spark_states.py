"""The states of tickets as a table of a real Spark, from a real server, in the form in which workers save them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as fn

from bridge.app.state import stored_form
from bridge.routing.errors import PayloadError
from bridge.routing.keys import LaneKeys
from bridge.spark.job.failures import one_line
from bridge.stack.embedded import EmbeddedServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KEYS = LaneKeys("ticket_stream", "concurrency_stream_group")
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "spark.md"


def test_the_states_of_the_page_are_a_table_for_joins_and_checks(session: SparkSession, valkey: EmbeddedServer) -> None:
    values = {f"T{number}": {"total": number, "tags": ["ü", number]} for number in range(100)}
    with valkey.client() as client:
        client.xgroup_create(KEYS.stream, KEYS.group, mkstream=True)
        for ticket, state in values.items():
            client.hset(KEYS.state(ticket), mapping=stored_form(state))
    # As the page has it
    [shown] = re.findall(r"## Read the states of tickets.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"session": session}
    exec(shown.replace("redis://localhost:6379/0", valkey.url), names)
    totals = names["totals"]
    assert {row["ticket_id"]: row["total"] for row in totals.collect()} == {
        ticket: state["total"] for ticket, state in values.items()
    }
    # A join, by several tasks, and values with a type of their own
    reader = session.read.format("redisstate").options(url=valkey.url, numPartitions="3", damaged="row")
    texts = reader.schema("ticket_id STRING, state STRING, problem STRING").load()
    assert texts.rdd.getNumPartitions() == 3
    known = session.createDataFrame([("T7", 7), ("T8", -1), ("other", 0)], "ticket_id string, expected long")
    parsed = texts.withColumn("s", fn.from_json("state", "total LONG, tags ARRAY<STRING>"))
    differ = known.join(parsed, "ticket_id").where("s.total <> expected").select("ticket_id", "s.total", "s.tags")
    assert [tuple(row) for row in differ.collect()] == [("T8", 8, ["ü", "8"])]
    # A damaged state names itself
    with valkey.client() as client:
        client.hset(KEYS.state("T9"), "total", "nine")
    assert [tuple(row) for row in texts.where("problem IS NOT NULL").collect()] == [
        ("T9", None, "the field total is not JSON")
    ]
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's; one_line reads it
        totals.collect()
    error = one_line(failed.value)
    assert isinstance(error, PayloadError)
    assert "the state of ticket 'T9' in concurrency_stream_group is damaged: the field total is not JSON" in str(error)
