"""Types of an app with the bridge, for type checkers only. Nothing of this exists at run time.

Celery has no types of its own, and its stubs (``celery-types``) do not know `TicketTask`. So `install` is annotated to
return a `TicketApp`. Its decorator returns tasks that can ``push``, with the stubs and without them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from celery import Celery

    from bridge.app.installed import Bridge
    from bridge.app.task import TicketTask

    T = TypeVar("T")

    class TicketApp(Celery):
        """The Celery app that was given to `bridge.install`."""

        bridge: Bridge

        @overload
        def task(self, fun: Callable[..., Any], /, **options: Any) -> TicketTask: ...
        @overload
        def task(self, *, base: type[T], **options: Any) -> Callable[[Callable[..., Any]], T]: ...
        @overload
        def task(self, *, base: None = None, **options: Any) -> Callable[[Callable[..., Any]], TicketTask]: ...
        def task(self, *args: Any, **options: Any) -> Any:  # type: ignore[misc]  # mypy: positional-only beside **
            """Declares a task."""

        def register_task(self, task: T, **options: Any) -> T:
            """Registers an instance of a task class."""
