"""Loads the Celery app of a command, as ``celery -A`` does, and connects to the app's server."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from celery.app.utils import find_app
from celery.exceptions import ImproperlyConfigured
from redis.exceptions import RedisError

from bridge.app.installed import bridge_of
from bridge.link.connections import check_server, client
from bridge.link.key_types import refuse_misplaced
from bridge.protocol.agreement import refuse_newer, refuse_other
from bridge.routing.connection import with_raw_replies
from bridge.routing.errors import ConfigurationError, TicketBridgeError
from bridge.routing.layouts import find_layout
from bridge.routing.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.settings.lane import LaneSettings

#: Folders of Python and of installed packages: code in other folders is the user's.
INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def load_app(name: str) -> Celery:
    """The app ``name`` (module, or module:attribute), which must have the bridge. Raises `ConfigurationError`."""
    # The folder may have been deleted since the shell went into it.
    with suppress(FileNotFoundError):
        here = str(Path.cwd())
        if here not in sys.path:
            # As celery does: look for the app in the current folder.
            sys.path.insert(0, here)
    module = name.partition(":")[0]
    if not all(module.split(".")) or "/" in module:
        raise ConfigurationError(
            f"-A {name!r} names no module: it is a name with dots, such as shop.app, and no path; run this in the "
            "folder where the module is"
        )
    try:
        app: Celery = find_app(name)
        # Celery reads its configuration late. Read it now, so that a missing configuration module fails here.
        app.conf.broker_url  # noqa: B018
    except TicketBridgeError:
        raise
    except SystemExit as exc:
        raise ConfigurationError(f"the Celery app {name!r} fails to load: {_ended(exc)}") from None
    except ModuleNotFoundError as exc:
        if exc.name == name and ":" in name:
            raise ConfigurationError(
                f"there is no Celery app {name.partition(':')[2]!r} in {module!r}; name it with -A MODULE:NAME"
            ) from None
        if exc.name is None or not (module == exc.name or module.startswith(f"{exc.name}.")):
            raise ConfigurationError(f"the Celery app {name!r} fails to load: {exc}{_place(exc)}") from None
        raise ConfigurationError(
            f"cannot load the Celery app {name!r}: {exc}; run this where the module is, or name another one with -A"
        ) from None
    except AttributeError as exc:
        if _in_user_code(exc):
            raise ConfigurationError(f"the Celery app {name!r} fails to load: {exc}{_place(exc)}") from None
        raise ConfigurationError(f"there is no Celery app in {name!r} ({exc}); name it with -A MODULE:NAME") from None
    except ImproperlyConfigured as exc:
        said = " ".join(str(exc).split())
        raise ConfigurationError(f"the configuration of the Celery app {name!r} cannot work: {said}") from None
    except Exception as exc:
        raise ConfigurationError(
            f"the Celery app {name!r} fails to load: {type(exc).__name__}: {_said(exc)}{_place(exc)}"
        ) from None
    bridge_of(app)
    return app


def load_tasks(app: Celery) -> None:
    """Imports the modules that hold the app's tasks, so that their names are known. Raises `ConfigurationError`."""
    try:
        app.loader.import_default_modules()
        app.finalize()
        bridge_of(app).knows_tasks = True
    except TicketBridgeError:
        raise
    except SystemExit as exc:
        raise ConfigurationError(f"the tasks of the Celery app fail to load: {_ended(exc)}") from None
    except Exception as exc:
        raise ConfigurationError(
            f"the tasks of the Celery app fail to load: {type(exc).__name__}: {_said(exc)}{_place(exc)}"
        ) from None


def know_tasks(app: Celery) -> None:
    """`load_tasks`, in a process that has not done so. A worker has."""
    if not (bridge_of(app).knows_tasks or app.loader.worker_initialized):
        load_tasks(app)


def reach(app: Celery) -> Redis:
    """A client for the lane's server, which answered and is fit. It returns stream entries as raw replies.

    Raises `ConfigurationError`, `ServerUnavailable`, `ServerTooOld` or `ServerUnfit`, one line each.
    """
    url = bridge_of(app).settings.redis_url
    redis = client(url)
    check_server(redis, url)
    return with_raw_replies(redis)


def learn_layout(app: Celery) -> None:
    """Reads how the app's stream is split. Raises as `reach` does, and redis errors."""
    found = bridge_of(app)
    settings = found.settings
    with client(found.settings.redis_url) as redis:
        try:
            stored = find_layout(redis, settings.lane.stream, settings.partitions, settings.older_streams)
            found.learn_retired(redis)
        except (RedisError, OSError, ConfigurationError):
            # Says more clearly what is wrong with the server.
            check_server(redis, found.settings.redis_url)
            raise
    found.take_layout(stored)


def reach_lane(app: Celery, lane: LaneSettings, *, to_change: bool = False) -> Redis:
    """A client as of `reach`, for a command that reads the lane or, ``to_change``, changes it.

    Also raises `ConfigurationError` when a key of the lane has the wrong type, or a newer version keeps the lane; and
    when it is to be changed and belongs to another app.
    """
    return _reach_lanes(app, (lane,), to_change=to_change)


def reach_lanes(app: Celery, lanes: Sequence[AppLane], *, to_change: bool = False) -> Redis:
    """As `reach_lane`, for a command that is about several lanes."""
    return _reach_lanes(app, [lane.settings for lane in lanes], to_change=to_change)


def _reach_lanes(app: Celery, lanes: Sequence[LaneSettings], *, to_change: bool) -> Redis:
    redis = reach(app)
    all_keys = [lane.keys for lane in lanes]
    refuse_misplaced(redis, *all_keys)
    if to_change:
        refuse_other(redis, app, *lanes)
    else:
        refuse_newer(redis, *all_keys)
    return redis


def _ended(exc: SystemExit) -> str:
    code = "" if exc.code is None else one_line(repr(exc.code), 80)
    return f"it ended the program while it was imported: sys.exit({code}){_place(exc)}"


def _said(exc: Exception) -> str:
    # Some errors have many lines. The first one says what is wrong.
    text = ""
    with suppress(Exception):
        # To make the text of an error may fail.
        text = str(exc)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "(no message)"


def _place(exc: BaseException) -> str:
    if isinstance(exc, SyntaxError) and exc.filename:
        return f" ({exc.filename}:{exc.lineno})"
    frames = [f for f in traceback.extract_tb(exc.__traceback__) if not f.filename.startswith("<")]
    # The user can fix the last frame that is outside of Python and of installed packages.
    own = [f for f in frames if not f.filename.startswith(INSTALLED)]
    frame = (own or frames)[-1]
    return f" ({frame.filename}:{frame.lineno})"


def _in_user_code(exc: Exception) -> bool:
    """Whether ``exc`` was raised while the user's module was imported, and not by the look-up of the app in it."""
    frames = traceback.extract_tb(exc.__traceback__)
    return any(frame.filename.startswith("<frozen importlib") for frame in frames)
