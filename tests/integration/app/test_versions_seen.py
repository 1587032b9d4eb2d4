"""What `bridge status`, the audit and their advice say of a chain of versions."""

from __future__ import annotations

import json
import re
import shlex

from bridge.testing.waiting import wait_until
from tests.integration.versions import GROUP, Versions


def test_status_and_audit_count_the_messages_of_all_versions(chain: Versions) -> None:
    chain.worker("w1")
    chain.master("m1")
    for version in ("v1", "v1", "v2"):
        chain.push(version, "T")
    chain.wait_all()
    chain.operate("ticket", "park", "P", "--stream", "orders")
    chain.push("v1", "P")
    wait_until(lambda: chain.redis.xpending("orders", GROUP)["pending"], description="the message to be read")

    def audited(*options: str) -> tuple[int, int]:
        found = json.loads(chain.operate("audit", "--json", *options))
        return found["deliveries"], found["undone"]

    assert audited() == (3, 1)
    assert audited("--stream", "orders:v2") == (1, 0)
    assert audited("--ticket", "T", "--stream", "orders:v2") == (1, 0)
    assert "added up over the versions: orders, orders:v2" in chain.operate("audit")
    for options in ((), ("-s", GROUP)):
        found = json.loads(chain.operate("status", "--json", *options))
        assert [(one["name"], one["undone"]) for one in found["subscriptions"]] == [(GROUP, 1)]
        assert [(one["name"], one["undone"]) for one in found["lanes"]] == [
            (f"{GROUP} on orders", 1),
            (f"{GROUP} on orders:v2", 0),
        ]


def test_status_says_why_each_lane_stands_still_and_what_it_advises_can_be_run(chain: Versions) -> None:
    chain.conf["bridge_dead_max"] = 1
    chain.worker("w1")
    chain.master("m1")
    chain.push("v1", "dead", fail=9)
    chain.wait_ended("v1", 1)
    chain.operate("ticket", "park", "P", "--stream", "orders")
    for n in range(600):
        chain.push("v1", f"T{n}")
    chain.push("v2", "N")
    chain.push("v2", "P")
    chain.redis.xadd("orders:v2", {"ticket_id": "U", "task": "versions.none", "payload": "{}"})
    full = "1 dead letter, and bridge_dead_max is 1: nothing new is read"
    unread = "it waits until the older version orders is read: 600 messages are unread there, of any ticket"
    wait_until(lambda: chain.why("N").startswith(f"{unread}; {full}"), description="the reason")
    assert full in chain.why("T500", bridge_stream="orders", bridge_follows=[]), "an unread ticket of the full lane"
    wait_until(lambda: "for versions.none" in chain.status(), description="the task to be noted")
    status = chain.status()
    for lane, problem in (
        ("orders", full),
        ("orders", "1 ticket parked"),
        ("orders:v2", "1 message of 1 ticket waits"),
    ):
        assert f"! {GROUP} on {lane}: {problem}" in status
    assert f"{GROUP} on orders     " in status
    advised = advised_in(status, chain.why("N"), chain.why("P"))
    assert ["ticket", "release", "--stream", "orders", "P"] in [words[3:] for words in advised]
    assert ["dead", "list", "--stream", "orders"] in [words[3:] for words in advised]
    assert ["status", "-s", GROUP, "--stream", "orders"] in [words[3:] for words in advised]
    for words in advised:
        assert words[:3] == ["bridge", "-A", "tests.apps.versions"]
        chain.operate(*words[3:])
    assert f"lane       orders / {GROUP}" in chain.operate("status", "--stream", "orders")


def advised_in(*texts: str) -> list[list[str]]:
    """The commands of `bridge` in sentences."""
    found = [shlex.split(one) for text in texts for one in re.findall("`([^`]*)`", text)]
    return [words for words in found if words[0] == "bridge"]
