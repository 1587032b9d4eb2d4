"""What a replay says to a program (`--progress json`)."""

from __future__ import annotations

import json
import re

import pytest

from bridge.spark.archiving.selection import Counts
from bridge.spark.replay import _tell_counts
from bridge.testing.nodes.process import ROOT


def test_the_event_of_a_selection_has_the_members_that_the_page_names(capsys: pytest.CaptureFixture[str]) -> None:
    counts = Counts(9, 2, 1, 3, "1-0", "9-0", expired=1, cut=1, with_option={"due": 4, "hold": 2})
    _tell_counts(counts, "json")
    event = json.loads(capsys.readouterr().out)
    assert (event["event"], event["replayable"], event["delayed"]) == ("selected", 5, 4)
    page = (ROOT / "docs/reference/spark-jobs.md").read_text(encoding="utf-8")
    said = re.search(r"`selected` \((`selected`, `replayable`.*?)\)", page)
    assert said is not None
    assert event.keys() == {"event", *re.findall(r"`(\w+)`", said[1])}
