"""What all routes share: the app, the tokens, the connection to Redis, and the open long polls. One for each server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from bridge.app.installed import bridge_of
from bridge.http.access import Access, Caller, Verb
from bridge.http.problems import Problem, unavailable

if TYPE_CHECKING:
    from celery import Celery
    from redis.asyncio import Redis as AsyncRedis

    from bridge.settings.app import Settings


class Site:
    """Made before the server's event loop runs. All methods are for that loop."""

    def __init__(self, app: Celery, access: Access) -> None:
        self.app = app
        self.access = access
        #: Set when the server stops. Each long poll then answers at once.
        self.stopping = asyncio.Event()
        #: Called after that.
        self.on_stop: list[Callable[[], None]] = []
        self._polls = 0

    @property
    def settings(self) -> Settings:
        return bridge_of(self.app).settings

    async def redis(self) -> AsyncRedis:
        """The client of this server's event loop. Its connections are its own. Raises redis errors."""
        return await bridge_of(self.app).async_client()

    def stop(self) -> None:
        """The server stops."""
        self.stopping.set()
        for wake in self.on_stop:
            wake()

    @contextmanager
    def long_poll(self) -> Iterator[None]:
        """Counts an open long poll within the block. Raises `Problem` (503) when there are too many."""
        most = self.settings.http_max_polls
        if self._polls >= most:
            raise unavailable(
                f"there are {most:,} open long polls on this master, and that is the limit; try another master"
            )
        self._polls += 1
        try:
            yield
        finally:
            self._polls -= 1

    @property
    def polls(self) -> int:
        """How many long polls are open."""
        return self._polls


def site_of(request: Request) -> Site:
    """The site of the server that got ``request``."""
    found: Site = request.app.state.site
    return found


_BEARER = HTTPBearer(auto_error=False, scheme_name="token", description="A token of the master's token file.")


def _caller_for(verb: Verb) -> Callable[..., Caller]:
    def caller(
        request: Request,
        given: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
    ) -> Caller:
        return authorised(site_of(request), None if given is None else given.credentials, verb)

    return caller


def authorised(site: Site, token: str | None, verb: Verb) -> Caller:
    """The caller with ``token``, which may use ``verb``. Raises `Problem`: 401 or 403."""
    found = site.access.caller(token)
    if found is None:
        said = "this needs a token: Authorization: Bearer TOKEN" if token is None else "there is no such token"
        raise Problem(401, said, headers={"WWW-Authenticate": "Bearer"})
    if not found.may(verb):
        raise Problem(403, f"this token may not {verb}")
    return found


def require(caller: Caller, verb: Verb, subscription: str) -> None:
    """Raises `Problem` (403) unless ``caller`` may use ``verb`` for ``subscription``."""
    if not caller.may(verb, subscription):
        raise Problem(403, f"this token may not {verb} for the subscription {subscription!r:.200}")


def chosen(caller: Caller, verb: Verb, known: Collection[str], wanted: str | None) -> str:
    """Which of the subscriptions ``known`` is meant. Raises `Problem`: 400, 403 or 404.

    None of these names a subscription that ``caller`` may not use. 403 comes before 404: the caller does not learn
    either whether there is one of the name that it asks for.
    """
    own = ", ".join(name for name in known if caller.may(verb, name))
    if wanted is None:
        if len(known) > 1:
            raise Problem(400, f"this app has several subscriptions, so name one{own and f' of {own}'}")
        if not own:
            raise Problem(403, f"this token may not {verb} for the subscription of this app")
        [wanted] = known
    require(caller, verb, wanted)
    if wanted not in known:
        raise Problem(404, f"there is no such subscription{own and f'; there is {own}'}")
    return wanted


# The three are what a route names as the type of a parameter.
SiteOf = Annotated[Site, Depends(site_of)]
Pushing = Annotated[Caller, Depends(_caller_for(Verb.PUSH))]
Consuming = Annotated[Caller, Depends(_caller_for(Verb.CONSUME))]
Reading = Annotated[Caller, Depends(_caller_for(Verb.READ))]
