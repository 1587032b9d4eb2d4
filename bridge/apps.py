"""Finds the Celery app that a command is for, as ``celery -A`` does."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from celery.app.utils import find_app

from bridge.installation import bridge_of
from routing.errors import ConfigurationError, TicketBridgeError

if TYPE_CHECKING:
    from celery import Celery


def load_app(name: str) -> Celery:
    """The app ``name`` (module, or module:attribute), which must have the bridge. Raises `ConfigurationError`."""
    here = str(Path.cwd())
    if here not in sys.path:
        # As celery does: an app is looked for where the command was typed.
        sys.path.insert(0, here)
    try:
        app: Celery = find_app(name)
    except TicketBridgeError:
        raise
    except ModuleNotFoundError as exc:
        raise ConfigurationError(f"cannot load the Celery app {name!r}: {exc}; run this where it is, or name it with -A") from None
    except AttributeError as exc:
        raise ConfigurationError(f"there is no Celery app in {name!r}: {exc}") from None
    except Exception as exc:
        last = traceback.extract_tb(exc.__traceback__)[-1]
        raise ConfigurationError(
            f"the Celery app {name!r} fails to load: {type(exc).__name__}: {exc} ({last.filename}:{last.lineno})"
        ) from None
    bridge_of(app)
    return app
