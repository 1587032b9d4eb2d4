"""Why Spark did not start, in one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bridge.spark.job.session import SparkStartFailed, _why, local_session


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'Exception in thread "main" org.apache.spark.SparkException: Master must either be yarn or start with spark'
            "\n\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)\n",
            "Master must either be yarn or start with spark",
        ),
        (
            "26/11/22 ERROR StandaloneSchedulerBackend: Application was killed. Reason: All masters are unresponsive! "
            "Giving up.\n26/11/22 WARN StandaloneAppClient$ClientEndpoint: Drop UnregisterApplication(null)\n",
            "All masters are unresponsive! Giving up.",
        ),
        (
            'Exception in thread "main" java.lang.ExceptionInInitializerError\n\tat org.apache.spark.Utils$.x()\n'
            "Caused by: java.net.UnknownHostException: jdk.Info@1b5bc39d\n\t... 10 more\n"
            "Caused by: java.net.UnknownHostException: web-7: Temporary failure in name resolution\n\t... 18 more\n",
            "java.net.UnknownHostException: web-7: Temporary failure in name resolution",
        ),
        ("java: cannot allocate\n\tat somewhere.else(Else.java)\n\t... 3 more\n\n", "java: cannot allocate"),
        ("Error occurred during initialization of VM\n\n", "Error occurred during initialization of VM"),
        ("", "its log is empty"),
    ],
)
def test_the_telling_line_is_found(text: str, said: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(text)
    assert _why(log) == said


def test_a_log_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    assert _why(tmp_path / "log") == "its log is empty"


@pytest.mark.parametrize(
    ("master", "chosen", "seen"),
    [
        ("local[2]", None, "127.0.0.1"),
        ("local[2]", "10.1.2.3", "10.1.2.3"),
        ("spark://far:7077", None, None),
        ("local-cluster[2,1,512]", None, None),
    ],
)
def test_a_local_master_needs_no_address_of_the_machine_and_a_cluster_must_reach_its_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, master: str, chosen: str | None, seen: str | None
) -> None:
    """A process may start one, and the other later."""
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    if chosen is not None:
        monkeypatch.setenv("SPARK_LOCAL_IP", chosen)
    addresses: list[str | None] = []

    def start(_: Any) -> None:
        addresses.append(os.environ.get("SPARK_LOCAL_IP"))
        raise RuntimeError

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", start)
    with pytest.raises(SparkStartFailed):
        local_session("x", master=master, log=tmp_path / "log")
    assert addresses == [seen]
    assert os.environ.get("SPARK_LOCAL_IP") == chosen
