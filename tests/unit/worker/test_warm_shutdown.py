"""The order of a warm shutdown: the leader learns that the worker leaves, then messages go back."""

from __future__ import annotations

import pytest
from redis.exceptions import ConnectionError as Lost

from bridge.consumer.holdings import Holdings
from bridge.settings.lane import LaneSettings
from bridge.testing.waiting import wait_until
from bridge.worker.main import warm_shutdown as shutdown
from bridge.worker.main.warm_shutdown import WarmShutdown


class Leaving:
    """A stopping worker. ``did``: the steps of its warm shutdown, in order."""

    def __init__(self, failures: int = 0, has_lease: bool = True) -> None:
        self.did: list[str] = []
        self._failures = failures
        self.shutdown = WarmShutdown(
            "redis://localhost:1/0",
            LaneSettings(),
            "w1@here",
            "life1",
            holdings=Holdings(),
            lease_holds=lambda: has_lease,
            write=lambda _incarnation, _outcomes: None,
            recall_all=lambda: self.did.append("recall"),
            give_back_unstarted=lambda: self.did.append("give back"),
        )
        self.shutdown._announce_leaving = self._announce_leaving  # type: ignore[method-assign]
        self.shutdown._give_back = self._empty  # type: ignore[method-assign]

    def _announce_leaving(self) -> None:
        self._failures -= 1
        if self._failures >= 0:
            self.did.append("cannot tell")
            raise Lost("gone")
        self.did.append("tell")

    def _empty(self) -> bool:
        self.did.append("empty")
        return False


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "QUEUE_CHECK_S", 0.001)


def ran(leaving: Leaving) -> list[str]:
    leaving.shutdown.start()
    wait_until(lambda: leaving.did.count("give back") >= 2, description="two looks")
    leaving.shutdown.stop()
    return leaving.did


def test_nothing_is_given_back_before_the_leader_is_notified() -> None:
    assert ran(Leaving())[:5] == ["tell", "recall", "empty", "give back", "empty"]


def test_during_an_outage_work_is_recalled_and_the_leader_is_notified_later() -> None:
    assert ran(Leaving(failures=2))[:6] == ["cannot tell", "recall", "cannot tell", "empty", "give back", "tell"]


def test_the_leader_is_notified_once() -> None:
    assert ran(Leaving(failures=1)).count("tell") == 1


def test_without_a_lease_the_queue_may_be_anothers() -> None:
    did = ran(Leaving(has_lease=False))
    assert did[:3] == ["tell", "recall", "give back"]
    assert "empty" not in did
