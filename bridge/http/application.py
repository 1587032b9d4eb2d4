"""The application of all routes."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import FastAPI

from bridge.http import consumer_routes, health, pushing, views
from bridge.http.consumer_routes import Consumers
from bridge.http.description import complete_description
from bridge.http.limits import Limited
from bridge.http.problems import handle_problems

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from bridge.http.site import Site

#: All routes, in the order of the description.
ROUTERS = (health.router, pushing.router, consumer_routes.router, views.router)

ABOUT = """Consumers and producers in any language, for the lanes of one Celery app with the bridge.

Every error is an RFC 9457 problem (`application/problem+json`) whose `detail` says what to do. On 503, try again after
the time of `Retry-After`: nothing was lost, and a request with an idempotency key, an acknowledgement or a receive can
be repeated as it is.
"""


def describe(*, is_open: bool = False) -> FastAPI:
    """The routes, without a site: for the description of the interface. ``is_open``: no token is needed."""
    application = FastAPI(
        title="Ticket Bridge",
        version=version("ticket-bridge"),
        description=ABOUT,
        openapi_url="/api/openapi.json",
        # FastAPI's own pages of documentation load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for router in ROUTERS:
        application.include_router(router)
    handle_problems(application)
    complete_description(application, pushing.SCHEMAS, is_open=is_open)
    return application


def make_application(site: Site) -> ASGIApp:
    """The application of a server."""
    application = describe(is_open=site.access.is_open)
    application.state.site = site
    application.state.consumers = Consumers(site)
    return Limited(application, site)
