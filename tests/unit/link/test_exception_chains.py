"""The chain of an exception is made by the app, and may be a circle."""

from __future__ import annotations

import errno
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from bridge.link.outage import has_no_file_descriptor


class Falsy(Exception):
    def __len__(self) -> int:
        return 0


def places(count: int) -> st.SearchStrategy[Any]:
    return st.lists(st.none() | st.integers(0, count - 1), min_size=count, max_size=count)


#: Of each exception of a chain: its cause and its context, as places in the list.
LINKS = st.integers(1, 5).flatmap(lambda count: st.tuples(places(count), places(count)))


@given(links=LINKS, at=st.integers(0, 4), number=st.sampled_from([errno.EMFILE, errno.ENFILE, errno.ECONNREFUSED]))
@example(links=([0], [None]), at=0, number=errno.EMFILE)
@example(links=([0], [None]), at=0, number=errno.ECONNREFUSED)
@example(links=([1, 0], [None, None]), at=1, number=errno.ENFILE)
@example(links=([1, 2, 0], [None] * 3), at=4, number=errno.EMFILE)
def test_a_missing_descriptor_is_found_in_any_chain(links: tuple[list[Any], list[Any]], at: int, number: int) -> None:
    causes, contexts = links
    chain: list[BaseException] = [Falsy() for _ in causes]
    if at < len(chain):
        chain[at] = OSError(number, "no")
    for exc, cause, context in zip(chain, causes, contexts, strict=True):
        exc.__cause__ = None if cause is None else chain[cause]
        exc.__context__ = None if context is None else chain[context]
    # What is reached from the first one: the cause, or else the context
    reached, next_one = [], 0
    while next_one is not None and next_one not in reached:
        reached.append(next_one)
        next_one = causes[next_one] if causes[next_one] is not None else contexts[next_one]
    assert has_no_file_descriptor(chain[0]) is (at in reached and number in (errno.EMFILE, errno.ENFILE))


def test_no_exception_is_no_missing_descriptor() -> None:
    assert not has_no_file_descriptor(None)
