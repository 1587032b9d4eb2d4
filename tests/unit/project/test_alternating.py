"""A case that runs on one of the two servers in `make test` runs on the other one in `make long`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.alternating import alternate, has_cases

SERVERS = ("valkey-9.1", "redis-6.2.14")


def item(name: str, server: str, **more: Any) -> Any:
    marks: list[str] = []
    spec = SimpleNamespace(params={"server": server, **more})
    return SimpleNamespace(nodeid=f"test_a.py::{name}[{server}]", callspec=spec, marks=marks, add_marker=marks.append)


def test_each_case_is_long_on_one_server_and_about_half_of_them_on_each() -> None:
    chosen = []
    for n in range(100):
        both = [item(f"test_{n}", server) for server in SERVERS]
        for one in both:
            alternate(one, SERVERS)
        assert sorted(one.marks for one in both) == [[], ["long"]]
        chosen += [server for server, one in zip(SERVERS, both, strict=True) if not one.marks]
    assert 30 < chosen.count(SERVERS[0]) < 70


def test_other_tests_are_left_alone() -> None:
    others: list[Any] = [item("test_x", "another"), SimpleNamespace(nodeid="test_a.py::test_x")]
    for one in others:
        alternate(one, SERVERS)
        assert not getattr(one, "marks", ())


@pytest.mark.parametrize(("more", "has"), [({}, False), ({"examples": 5}, False), ({"edge": "done"}, True)])
def test_a_number_of_examples_is_no_case(more: dict[str, Any], has: bool) -> None:
    assert has_cases(item("test_x", SERVERS[0], **more)) is has
