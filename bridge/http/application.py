"""The application of all routes."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from bridge.http import health, pushing, views
from bridge.http.limits import Limited
from bridge.http.problems import ProblemDocument, handle_problems

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from bridge.http.site import Site

#: All routes, in the order of the description.
ROUTERS = (health.router, pushing.router, views.router)

ABOUT = """Consumers and producers in any language, for the lanes of one Celery app with the bridge.

Every error is an RFC 9457 problem (`application/problem+json`) whose `detail` says what to do. On 503, try again after
the time of `Retry-After`: nothing was lost, and a request with an idempotency key, an acknowledgement or a receive can
be repeated as it is.
"""


def describe() -> FastAPI:
    """The routes, without a site: for the description of the interface."""
    application = FastAPI(
        title="Ticket Bridge",
        version=version("ticket-bridge"),
        description=ABOUT,
        openapi_url="/api/openapi.json",
        # Their pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for router in ROUTERS:
        application.include_router(router)
    handle_problems(application)
    _describe_truly(application)
    return application


def make_application(site: Site) -> ASGIApp:
    """The application of a server."""
    application = describe()
    application.state.site = site
    return Limited(application, site)


def _describe_truly(application: FastAPI) -> None:
    """Takes FastAPI's own error form out of the description: a malformed request is answered with 400."""
    plain = application.openapi

    def openapi() -> dict[str, Any]:
        if application.openapi_schema is None:
            document = plain()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            schemas.update(pushing.SCHEMAS)
            schemas["ProblemDocument"] = ProblemDocument.model_json_schema()
            for operations in document["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
        return application.openapi_schema or document

    application.openapi = openapi  # type: ignore[method-assign]
