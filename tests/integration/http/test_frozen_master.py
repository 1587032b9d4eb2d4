"""`HttpConsumer` with two masters, of which one is frozen with all of its processes, as a host that is lost."""

from __future__ import annotations

import threading

import pytest

from bridge.consumer import HttpConsumer, Message
from bridge.stack.ports import HOST
from bridge.testing.nodes.node import Node
from bridge.testing.waiting import wait_until
from tests.integration.http.http_consumers import HttpLane

#: The lease is six seconds, and the leader's two. A long poll would take thirty, and a registration seventy.
SOON_S = 20


def freeze(master: Node) -> None:
    for process in master.survivors():
        process.suspend()


@pytest.mark.parametrize("when", ["before it registers", "while it receives"])
def test_a_master_that_is_frozen_does_not_hold_its_consumers_up(
    short: HttpLane, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    lane = short
    handled: list[int] = []
    lane.master("m2")
    frozen = lane.nodes.masters()[0]
    urls = [f"http://{HOST}:{lane.ports[name]}" for name in ("m1", "m2")]

    def handle(message: Message) -> None:
        handled.append(message.payload["n"])

    consumer = HttpConsumer(urls, "h1", handle)
    running = threading.Thread(target=consumer.run, daemon=True)
    if when == "before it registers":
        freeze(frozen)
        running.start()
    else:
        running.start()
        lane.push("T1", {"n": 0})
        wait_until(lambda: handled == [0], description="the first message")
        freeze(frozen)
    try:
        lane.push("T1", {"n": 1})
        wait_until(lambda: handled[-1:] == [1], description="the message after it froze", timeout_s=SOON_S)
    finally:
        consumer.stop()
        running.join(SOON_S)
    assert not running.is_alive()
    assert "cannot leave" not in caplog.text
    wait_until(lambda: not lane.redis.hexists(lane.keys.consumers, "h1"), description="its name to be gone")
