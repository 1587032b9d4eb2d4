"""Notices about dead letters with real masters and a receiver that answers, refuses, hangs and dies."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import MasterNode, NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.operate.test_operators import Shop

SECRET = "a secret of the receiver"
APP = """
import os
from celery import Celery
import bridge

app = Celery("shop", broker=os.environ["CELERY_BROKER_URL"])
bridge.install(app)
app.conf.update(
    bridge_default_task="shop.work", bridge_leader_lease=1, bridge_lease=2, bridge_max_attempts=1,
    bridge_on_dead_notify=eval(os.environ.get("SHOP_NOTIFY", "{}")),
)

@app.task(bind=True, name="shop.work", ignore_result=True)
def work(self, ticket_id, payload):
    raise ValueError("no " + payload["secret"])
"""


class Receiver:
    """An HTTP server that keeps what it gets. ``answer``: the status of its answers; 0: it hangs."""

    def __init__(self, *, away: bool = False) -> None:
        """``away``: it refuses connections until `listen`, and has its port meanwhile, which nobody else gets."""
        self.answer = 204
        #: Longest body that it takes.
        self.most = sys.maxsize
        #: The lengths of those that were longer.
        self.too_long: list[int] = []
        self.got: list[dict[str, Any]] = []
        self.tried: list[str] = []
        self.released = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.tried.append(self.path)
                if receiver.answer == 204 and len(body) > receiver.most:
                    receiver.too_long.append(len(body))
                    self.send_error(413)
                    return
                if not receiver.answer:
                    receiver.released.wait(60)
                    return
                if 200 <= receiver.answer < 300:
                    assert verified(self.headers, body)
                    receiver.got.append({"headers": dict(self.headers), **json.loads(body)})
                self.send_response(receiver.answer)
                self.send_header("location", f"http://127.0.0.1:{receiver.port}/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self.server.server_bind()
        self.port = self.server.server_address[1]
        self._serving = threading.Thread(target=self.server.serve_forever, daemon=True)
        if not away:
            self.listen()

    def listen(self) -> None:
        self.server.server_activate()
        self._serving.start()

    def close(self) -> None:
        self.released.set()
        if self._serving.is_alive():
            self.server.shutdown()
        self.server.server_close()

    @property
    def letters(self) -> list[dict[str, Any]]:
        return [letter for one in self.got for lane in one["data"]["lanes"] for letter in lane["letters"]]

    @property
    def number(self) -> int:
        return sum(one["data"]["count"] for one in self.got)


def verified(headers: Any, body: bytes) -> bool:
    """As a receiver does it that knows nothing of the bridge."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()).decode()
    fresh = abs(time.time() - int(headers["webhook-timestamp"])) < 300
    return fresh and hmac.compare_digest(headers["webhook-signature"], f"v1,{expected}")


class NoticeShop(Shop):
    def __init__(self, nodes: NodeYard, server: EmbeddedServer, folder: Path) -> None:
        super().__init__(nodes, server, folder)
        (folder / "shop.py").write_text(APP)

    def led_by(self, name: str, port: int, **more: Any) -> MasterNode:
        notify = {"url": f"http://127.0.0.1:{port}/hook", "secret": SECRET, "rate": 600, "timeout": 1, **more}
        return self.master(name, SHOP_NOTIFY=repr(notify))

    def break_some(self, count: int, *, first: int = 0, size: int = 0) -> list[str]:
        """Adds messages that can never be processed, with so many bytes more. Returns their ids."""
        with self.redis.pipeline(transaction=False) as pipe:
            for n in range(first, first + count):
                pipe.xadd(self.keys.stream, {"ticket_id": f"T{n}", "payload": "no JSON" + "x" * size})
            return [str(id_) for id_ in pipe.execute()]

    def notices(self) -> dict[str, str]:
        found: Any = self.redis.hgetall(self.keys.notices)
        return dict(found)

    def wait_begun(self) -> None:
        wait_until(self.notices, description="the leader to note where it begins")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def shop(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> Iterator[NoticeShop]:
    made = NoticeShop(nodes, own_server, tmp_path)
    yield made
    made.redis.close()


def test_a_dead_letter_is_told_signed_and_without_its_payload(shop: NoticeShop, receiver: Receiver) -> None:
    master = shop.led_by("m1", receiver.port)
    shop.wait_begun()
    shop.worker("w1", 1)
    id_ = shop.push("T1", 1, secret="card 4711")
    wait_until(lambda: receiver.letters, description="the notice", timeout_s=90)
    [letter] = receiver.letters
    [notice] = receiver.got
    assert (notice["type"], notice["data"]["app"], notice["data"]["count"]) == ("bridge.dead_letters", "shop", 1)
    lane = notice["data"]["lanes"][0]
    assert (lane["stream"], lane["subscription"]) == ("ticket_stream", "concurrency_stream_group")
    assert (letter["message_id"], letter["ticket_id"], letter["task"], letter["attempts"]) == (
        id_,
        "T1",
        "shop.work",
        1,
    )
    assert letter["error"] == "ValueError: no card 4711"
    assert "payload" not in letter
    assert "traceback" not in letter
    wait_until(lambda: shop.notices().get("told") == "1", description="the notice to be noted")
    assert shop.notices()["told_to"] == letter["letter_id"]
    line = next(line for line in master.logs().splitlines() if "is dead" in line)
    assert f"message {id_} of ticket T1, task shop.work is dead: gave up after" in line
    assert "4711" not in line
    found = shop.json("status")
    assert found["notices"]["told"] == 1
    assert "1 dead letter sent" in shop.bridge("status")


def test_payloads_only_when_asked_for(shop: NoticeShop, receiver: Receiver) -> None:
    shop.led_by("m1", receiver.port, payload=True)
    shop.wait_begun()
    shop.break_some(1)
    wait_until(lambda: receiver.letters, description="the notice", timeout_s=90)
    assert receiver.letters[0]["payload"] == "no JSON"
    assert ["ticket_id", "T0"] in receiver.letters[0]["fields"]


def test_a_storm_becomes_a_summary(shop: NoticeShop, receiver: Receiver) -> None:
    shop.led_by("m1", receiver.port, rate=30)
    shop.wait_begun()
    began = time.monotonic()
    for n in range(10):
        shop.break_some(100, first=100 * n)
    wait_until(lambda: receiver.number >= 1000, description="all letters to be told", timeout_s=90)
    took = time.monotonic() - began
    assert receiver.number == 1000
    assert len(receiver.got) <= 2 + took / 2
    assert max(len(lane["letters"]) for one in receiver.got for lane in one["data"]["lanes"]) == 20


@pytest.mark.parametrize("most", [400_000, 20_000, 1_000])
def test_a_receiver_that_takes_no_large_requests_is_told_of_all(
    shop: NoticeShop, receiver: Receiver, most: int
) -> None:
    # Given a receiver that fails at first, and then takes short requests alone
    receiver.answer, receiver.most = 503, most
    master = shop.led_by("m1", receiver.port, payload=True)
    shop.wait_begun()
    # When more letters with large payloads wait than it would take
    shop.break_some(25, size=60_000)
    wait_until(lambda: receiver.tried, description="a request")
    receiver.answer = 204
    # Then it is told of them in a shorter request, and of those that come later
    wait_until(lambda: receiver.number == 25, description="the first letters", timeout_s=90)
    shop.break_some(1, first=25)
    wait_until(lambda: receiver.number == 26, description="the next one", timeout_s=90)
    described = receiver.got[0]["data"]["lanes"][0]["letters"]
    # It was not asked to take more than half a megabyte, and as many were described as there was room for
    assert max(receiver.too_long, default=0) < 512 * 1024
    assert len(described) == 20 or most < 20_000
    assert any("payload" in letter for letter in described) == (most == 400_000)
    # And the log names each reason
    assert "the receiver answered 503" in master.logs()
    assert ("the receiver answered 413" in master.logs()) == bool(receiver.too_long)


def test_a_receiver_that_is_away_stops_nothing_and_gets_all_later(shop: NoticeShop) -> None:
    receiver = Receiver(away=True)
    shop.led_by("m1", receiver.port)
    shop.wait_begun()
    ids = shop.break_some(5)
    wait_until(lambda: shop.redis.xlen(shop.keys.dead) == 5, description="the letters")
    wait_until(lambda: int(shop.notices().get("failed", 0)) >= 2, description="two failed requests")
    found = shop.json("status")
    assert found["notices"]["failed"] >= 2
    assert any("does not get them: no answer: " in problem for problem in found["problems"])
    try:
        receiver.answer = 500
        receiver.listen()
        wait_until(
            lambda: "the receiver answered 500" in shop.notices().get("error", ""),
            description="a refusal",
            timeout_s=90,
        )
        receiver.answer = 200
        wait_until(lambda: receiver.letters, description="the notice", timeout_s=180)
        assert [letter["message_id"] for letter in receiver.letters] == ids
        wait_until(lambda: "error" not in shop.notices(), description="the error to be over")
        assert shop.json("status")["notices"]["error"] == ""
    finally:
        receiver.close()


def test_a_receiver_that_hangs_or_redirects(shop: NoticeShop, receiver: Receiver) -> None:
    receiver.answer = 0
    shop.led_by("m1", receiver.port)
    shop.wait_begun()
    for n in range(5):
        shop.break_some(1, first=n)
        wait_until(lambda n=n: shop.redis.xlen(shop.keys.dead) == n + 1, description="the lane to go on")  # type: ignore[misc]
    wait_until(lambda: "timed out" in shop.notices().get("error", ""), description="a time limit")
    receiver.answer = 302
    receiver.released.set()
    wait_until(lambda: "answered 302" in shop.notices().get("error", ""), description="a redirect", timeout_s=90)
    assert set(receiver.tried) == {"/hook"}


def test_every_letter_is_told_while_leaders_are_killed(shop: NoticeShop, receiver: Receiver) -> None:
    seed = int(os.environ.get("NOTICE_SEED", random.randrange(1 << 32)))
    print(f"NOTICE_SEED={seed}", file=sys.stderr)
    draw = random.Random(seed)
    masters = {name: shop.led_by(name, receiver.port) for name in ("m1", "m2")}
    shop.wait_begun()
    ids: list[str] = []
    for _ in range(5):
        ids.extend(shop.break_some(3, first=len(ids)))
        time.sleep(draw.uniform(0, 0.3))
        receiver.answer = draw.choice([204, 204, 503])
        holder = str(shop.redis.get(shop.keys.leader) or "")
        for node in masters.values():
            if f":{node.pid}:" in holder:
                node.kill()
                node.wait()
                node.start()
        receiver.answer = 204
        wait_until(
            lambda: {letter["message_id"] for letter in receiver.letters} >= set(ids),
            description=f"all letters to be told (seed {seed})",
            timeout_s=90,
        )
    # Twice at most for each kill, not again and again.
    told = Counter(letter["message_id"] for letter in receiver.letters)
    assert set(told) == set(ids)
    assert max(told.values()) <= 1 + 5, seed


def test_letters_from_before_are_not_told_and_letters_while_nobody_led_are(
    shop: NoticeShop, receiver: Receiver
) -> None:
    silent = shop.master("m0")
    shop.break_some(3)
    wait_until(lambda: shop.redis.xlen(shop.keys.dead) == 3, description="the letters")
    assert shop.notices() == {}
    silent.terminate()
    first = shop.led_by("m1", receiver.port)
    shop.wait_begun()
    [one] = shop.break_some(1, first=3)
    wait_until(lambda: receiver.letters, description="a notice")
    wait_until(lambda: shop.notices().get("told") == "1", description="the notice to be noted")
    first.terminate()
    other = shop.master("m2")
    [two] = shop.break_some(1, first=4)
    wait_until(lambda: shop.redis.xlen(shop.keys.dead) == 5, description="the letter")
    other.terminate()
    shop.led_by("m3", receiver.port)
    wait_until(lambda: len(receiver.letters) == 2, description="the second notice")
    assert [letter["message_id"] for letter in receiver.letters] == [one, two]
