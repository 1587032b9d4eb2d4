"""Parameters of requests: one that a route does not have, or that is given twice, is refused. A misspelt filter would
answer with everything, and a misspelt task would push for another one.

So is what is not UTF-8. It would become the replacement character, and `%FF` would name the ticket that has that one.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, get_args, get_origin
from urllib.parse import unquote_to_bytes

from fastapi import Request, Response
from fastapi.routing import APIRoute

from bridge.http.problems import malformed
from bridge.routing.text import printable


class QueryRoute(APIRoute):
    """A route that takes its own parameters alone, each once: ``APIRouter(route_class=QueryRoute)``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = dict(_parameters(self.dependant))

        async def strictly(request: Request) -> Response:
            _check_encoding("path", request.scope["raw_path"])
            if query := request.scope["query_string"]:
                _check_encoding("query", query)
                _check(Counter(name for name, _ in request.query_params.multi_items()), known)
            return await handle(request)

        return strictly


def _parameters(dependant: Any) -> Iterator[tuple[str, bool]]:
    """Each parameter of a route and of what it depends on, and whether it is a list."""
    for field in dependant.query_params:
        yield field.alias, _is_list(field.field_info.annotation)
    for inner in dependant.dependencies:
        yield from _parameters(inner)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(map(_is_list, get_args(annotation)))


def _check_encoding(where: str, encoded: bytes) -> None:
    """Raises `Problem` (400)."""
    if b"%" not in encoded:
        return
    try:
        unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise malformed([(where, "it must be percent-encoded UTF-8")], 1) from None


def _check(given: Mapping[str, int], known: Mapping[str, bool]) -> None:
    """Raises `Problem` (400)."""
    wrong = {name: _why(name, times, known) for name, times in given.items()}
    if said := [(f"query.{printable(name)[:80]}", why) for name, why in wrong.items() if why]:
        raise malformed(said, len(said))


def _why(name: str, times: int, known: Mapping[str, bool]) -> str:
    """Why the parameter ``name`` is wrong, which is given so many times; "": it is not."""
    if name not in known:
        near = difflib.get_close_matches(name[:80], known, n=1)
        there = (
            f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}" if known else "this route has none"
        )
        return f"there is no such parameter; {there}"
    if times == 1 or known[name]:
        return ""
    return f"it is given {'twice' if times == 2 else f'{times} times'}"
