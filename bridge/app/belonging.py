"""Refuses a push for a task that belongs to no subscription of its app.

Such a message is for nobody: subscriptions with a default task would handle it by that one, the others would leave it
out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridge.app.installed import bridge_of
from bridge.routing.errors import ConfigurationError, PayloadError
from bridge.routing.messages import MAX_TASK_BYTES
from bridge.settings.subscriptions import SETTING, check_task

if TYPE_CHECKING:
    from celery import Celery


class SubscriptionOf:
    """``bridge_subscription`` of a task that ``app`` declares, as a class attribute. Celery gives other apps of the
    process a copy of the task (``shared``). There it names a subscription only if that app's settings have it, too.
    """

    def __init__(self, app: Celery, name: str) -> None:
        self._app = app
        self._name = name

    def __get__(self, task: Any, owner: type) -> Any:
        if task is None or task.app is self._app:
            return self._name
        other = getattr(task.app, "bridge", None)
        return self._name if other is not None and self._name in other.settings.subscriptions else None


def belongs(app: Celery, task: Any) -> bool:
    """Whether the ticket task ``task`` belongs to a lane of ``app``."""
    subscriptions = bridge_of(app).settings.subscriptions
    # Without the setting, a task that names no subscription belongs to the lane of bridge_group.
    return (
        not subscriptions
        or bool(task.bridge_subscription)
        or any(lane.default_task == task.name for lane in subscriptions.values())
    )


def require_subscription(task: Any) -> None:
    """Raises `ConfigurationError` when ``task`` belongs to no subscription of its app, or names an unknown one."""
    if name := task.bridge_subscription:
        check_task(task.name, str(name), bridge_of(task.app).settings.subscriptions)
    if not belongs(task.app, task):
        known = ", ".join(bridge_of(task.app).settings.subscriptions)
        raise ConfigurationError(
            f"the task {task.name} belongs to no subscription: name one at the task (bridge_subscription), or name the "
            f"task in {SETTING}; this app has: {known}"
        )


def require_task(app: Celery, name: Any) -> None:
    """As `require_subscription`, for a name that a producer gives. A name that is unknown here may be another app's.

    Raises `PayloadError` for what no app can have.
    """
    if not isinstance(name, str):
        raise PayloadError(f"the name of a task must be a text, not {name!r:.80}")
    task = app.tasks.get(name)
    if task is None:
        if not 0 < len(name.encode(errors="surrogatepass")) <= MAX_TASK_BYTES or not name.isprintable():
            raise PayloadError(f"the name of a task must have 1 to {MAX_TASK_BYTES} bytes, and be printable")
    elif hasattr(task, "bridge_subscription"):
        require_subscription(task)
