"""Why Spark did not start, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.spark.job.session import _why


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
