"""Writes the commands that a sentence advises. A user can run them as they are."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

#: The app of a command without -A (`bridge.cli.main`).
DEFAULT_APP = "tasks"
#: Names of subscriptions that can be part of the name of a node.
_FIT = re.compile("[A-Za-z0-9_.-]{1,60}")


@dataclass(frozen=True)
class Advice:
    """Writes commands about one lane.

    ``app``: as ``-A`` names it; None: the default. ``subscription``: None where the app has only one. ``version``: the
    stream, where it is an older version.
    """

    app: str | None = None
    subscription: str | None = None
    version: str | None = None

    def bridge(self, *words: str) -> str:
        """A command about the lane."""
        options = []
        if self.subscription is not None:
            options += ["-s", self.subscription]
        if self.version is not None:
            options += ["--stream", self.version]
        return self.of_app(*words, *options)

    @property
    def master(self) -> str:
        """The command that starts a master."""
        return self.of_app("run")

    @property
    def worker(self) -> str:
        """The command that starts a worker. Where the app has several subscriptions, a worker of another one may have
        the usual name: two of one name stop each other.
        """
        name = "w1"
        if self.subscription is not None and _FIT.fullmatch(self.subscription):
            name = f"w1-{self.subscription}"
        return f"`celery -A {shlex.quote(self.app or DEFAULT_APP)} worker -n {name}@%h`"

    def of_app(self, *words: str) -> str:
        """A command about the app."""
        app = [] if self.app is None else ["-A", self.app]
        return f"`{shlex.join(['bridge', *app, *words])}`"


#: Where the app is not known.
NOT_OF_AN_APP = Advice()
