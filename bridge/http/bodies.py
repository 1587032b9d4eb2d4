"""Bodies of requests: JSON in UTF-8, read strictly. A value that JSON cannot keep exactly is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

import orjson
from fastapi import Request, Response

from bridge.http.problems import Problem
from bridge.http.queries import QueryRoute
from bridge.producer.duplicate_keys import duplicate_key

JSON = "application/json"
#: orjson reads a number that is too large for 64 bits as a float. Such digits may also be in a string.
_DIGITS = re.compile(rb"[0-9]{19}")
#: Most members of an object that is not a payload. The validation makes an error of each unknown one.
MOST_MEMBERS = 100


def json_of(raw: bytes) -> Any:
    """The value of a JSON text. Raises `Problem` (400)."""
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError as exc:
        raise Problem(400, f"the body is not JSON: {exc.msg} at byte {exc.pos}") from None
    if _DIGITS.search(raw) is not None and _may_be_rounded(found) and (number := _too_long(raw)) is not None:
        raise Problem(
            400, f"the body has a number that does not fit into 64 bits, about {number:g}: send it as a string"
        )
    return found


def pushed_json(raw: bytes) -> Any:
    """The value of a JSON text that holds payloads: no member of an object may be dropped. Raises `Problem` (400)."""
    found = json_of(raw)
    if (name := duplicate_key(raw.decode(), found)) is not None:
        raise Problem(400, f"the body has an object with the key {name!r:.100} twice")
    return found


def check_members(forms: Iterable[Any]) -> None:
    """Raises `Problem` (400) when an object among ``forms`` has more members than any that the interface knows."""
    for form in forms:
        if isinstance(form, dict) and len(form) > MOST_MEMBERS:
            raise Problem(400, f"an object in the body has {len(form):,} members, and the most is {MOST_MEMBERS}")


def _may_be_rounded(value: Any) -> bool:
    """Whether there is a float that may have been a whole number of more than 64 bits."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, float):
            if abs(one) >= 2**63 and one.is_integer():
                return True
        elif isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one
    return False


def _too_long(raw: bytes) -> float | None:
    """A whole number of more than 64 bits in a JSON text; None: there is none. ``1e300`` is none."""
    found: list[float] = []

    def look(digits: str) -> None:
        if not -(2**63) <= int(digits) < 2**64:
            found.append(float(digits))

    # Text that is nested too deeply for this parser is refused later, with its payload.
    with suppress(RecursionError):
        json.loads(raw, parse_int=look)
    return found[0] if found else None


def media_type_of(request: Request) -> str:
    """The media type of the body, in lower case, without parameters; "" when it is not said."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def require_json(request: Request) -> None:
    """Raises `Problem` (415) unless the body is JSON, as its media type says."""
    found = media_type_of(request)
    if found != JSON and not (found.startswith("application/") and found.endswith("+json")):
        given = f"not {found!r:.100}" if found else "and name it"
        raise Problem(415, f"send JSON as Content-Type: {JSON}, {given}", headers={"Accept": JSON})


class _StrictRequest(Request):
    async def json(self) -> Any:
        found = json_of(await self.body())
        check_members([found])
        if isinstance(found, dict):
            for value in found.values():
                check_members(value if isinstance(value, list) else [value])
        return found


class JsonRoute(QueryRoute):
    """A route whose body, if it has one, is read strictly, too: ``APIRouter(route_class=JsonRoute)``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            if self.body_field is not None:
                require_json(request)
            return await handle(_StrictRequest(request.scope, request.receive))

        return strictly
