"""The description of the interface (OpenAPI), as far as FastAPI does not write it: errors, tokens, chains of calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bridge.http.problems import ProblemDocument

if TYPE_CHECKING:
    from fastapi import FastAPI

#: A body that names the incarnation that the answer has.
_LIFE = {"requestBody": "$response.body"}
#: (method, path, status) -> name of a link -> what the answer supplies, and to which call: (method, path, parameters).
#: A test tool follows the chains, and so does a reader.
LINKS: dict[tuple[str, str, str], dict[str, tuple[str, str, dict[str, str]]]] = {
    ("post", "/api/messages", "201"): {
        "the dead letter of the message": (
            "get",
            "/api/dead-letters/{message_id}",
            {"message_id": "$response.body#/message_ids/0"},
        ),
    },
    ("post", "/api/consumers/register", "200"): {
        "its messages": (
            "get",
            "/api/messages/next",
            {"consumer": "$request.body#/name", "incarnation": "$response.body#/incarnation"},
        ),
        "its heartbeat": ("post", "/api/consumers/{name}/heartbeat", {"name": "$request.body#/name", **_LIFE}),
        "its end": ("post", "/api/consumers/{name}/leave", {"name": "$request.body#/name", **_LIFE}),
    },
}


def complete_description(application: FastAPI, schemas: Mapping[str, Any], *, is_open: bool) -> None:
    """Makes ``application`` describe what it does. ``schemas``: more forms of bodies. ``is_open``: without tokens."""
    plain = application.openapi

    def openapi() -> dict[str, Any]:
        if application.openapi_schema is None:
            document = plain()
            components = document.setdefault("components", {})
            known = components.setdefault("schemas", {})
            # A malformed request is answered with 400, as a problem.
            for name in ("HTTPValidationError", "ValidationError"):
                known.pop(name, None)
            known.update(schemas)
            known["ProblemDocument"] = ProblemDocument.model_json_schema()
            for _, _, operation in _operations(document):
                operation["responses"].pop("422", None)
                if is_open:
                    operation.pop("security", None)
            if is_open:
                components.pop("securitySchemes", None)
            _link(document)
            application.openapi_schema = document
        return application.openapi_schema

    application.openapi = openapi  # type: ignore[method-assign]


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield method, path, operation


def _link(document: Mapping[str, Any]) -> None:
    found = {(method, path): operation for method, path, operation in _operations(document)}
    for (method, path, status), links in LINKS.items():
        found[method, path]["responses"][status]["links"] = {
            name: {"operationId": found[to_method, to_path]["operationId"], **_supplied(parameters)}
            for name, (to_method, to_path, parameters) in links.items()
        }


def _supplied(values: dict[str, str]) -> dict[str, Any]:
    body = {"requestBody": {"incarnation": "$response.body#/incarnation"}} if "requestBody" in values else {}
    return {"parameters": {name: value for name, value in values.items() if name != "requestBody"}, **body}
