"""A push that is interrupted anywhere (Ctrl-C, a soft time limit) leaves nothing behind for the next one. And threads,
as many as there are, push at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from threading import Thread
from types import FrameType
from typing import Any

import pytest

import bridge.producer.push
from bridge.routing.errors import ServerUnavailable, Unanswered
from bridge.stack.embedded import EmbeddedServer
from tests.integration.producer.test_producers import entries, shop_of

FILE = bridge.producer.push.__file__
#: More than redis-py's limit of connections.
THREADS = 130


class SoftTimeLimit(Exception):
    """What strikes."""


def struck_at(line: int, action: Callable[[], Any]) -> bool:
    """Runs the action; raises before the n-th line that the push runs. Says whether it came so far."""
    done = 0

    def local(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal done
        if event == "line":
            done += 1
            if done == line:
                raise SoftTimeLimit
        return local

    def trace(frame: FrameType, _event: str, _arg: object) -> Any:
        return local if frame.f_code.co_filename == FILE else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except SoftTimeLimit:
        return True
    finally:
        sys.settrace(before)
    return False


def test_the_push_after_an_interrupted_one_gets_its_own_answer(server: EmbeddedServer) -> None:
    task = shop_of(server.url)
    task.push("first", {})
    with server.client() as client:
        for line in count(1):
            # The answer to the interrupted call is still on its way when the next push begins.
            client.execute_command("CLIENT", "PAUSE", 20, "WRITE")
            struck = struck_at(line, lambda line=line: task.push(f"A{line}", {}))  # type: ignore[misc]
            id_ = task.push(f"B{line}", {})
            assert [ticket for found, ticket, _ in entries(server) if found == id_] == [f"B{line}"], line
            if not struck:
                break
    task.app.bridge.client.close()
    assert line > 10


@pytest.mark.parametrize("many", [False, True])
def test_a_push_without_a_free_connection_was_not_sent(many: bool, server: EmbeddedServer) -> None:
    task = shop_of(server.url)
    task.push("first", {})
    pool = task.app.bridge.client.connection_pool
    pool.max_connections = 1
    taken = pool.get_connection()
    with pytest.raises(ServerUnavailable, match="Too many connections") as caught:
        task.push_many([("T", {})]) if many else task.push("T", {})
    assert not isinstance(caught.value, Unanswered)
    pool.release(taken)
    task.push("T", {})
    task.app.bridge.client.close()


def test_as_many_threads_push_at_once_as_there_are(server: EmbeddedServer) -> None:
    task = shop_of(server.url)
    task.push("first", {})
    failed = []

    def push(number: int) -> None:
        try:
            task.push(f"T{number}", {})
        except Exception as exc:
            failed.append(exc)

    threads = [Thread(target=push, args=(number,)) for number in range(THREADS)]
    with server.client() as client:
        # All of them wait for an answer at the same time.
        client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        for thread in threads:
            thread.start()
        while len(client.client_list()) < THREADS and any(thread.is_alive() for thread in threads) and not failed:
            pass
        client.execute_command("CLIENT", "UNPAUSE")
    for thread in threads:
        thread.join()
    task.app.bridge.client.close()
    assert not failed
    assert len(entries(server)) == THREADS + 1
