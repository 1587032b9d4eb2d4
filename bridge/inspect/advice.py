"""Writes the commands that a sentence advises. A user can run them as they are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from bridge.routing.text import one_line

#: The app of a command without -A.
DEFAULT_APP = "tasks"
#: What ends the options of a command.
END = "--"
#: Names of subscriptions that can be part of the name of a node.
_FIT = re.compile("[A-Za-z0-9_.-]{1,60}")
#: A word of a command, as a shell reads it: quotes may be in it.
_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")


@dataclass(frozen=True)
class Advice:
    """Writes commands about one lane.

    ``app``: as ``-A`` names it; None: the default. ``subscription``: None where the app has only one. ``version``: the
    stream, where it is an older version.
    """

    app: str | None = None
    subscription: str | None = None
    version: str | None = None

    def bridge(self, *words: str, about: str | None = None) -> str:
        """A command about the lane. ``about``: its argument, as the name of a ticket, which may be any text."""
        options = []
        if self.subscription is not None:
            options += ["-s", self.subscription]
        if self.version is not None:
            options += ["--stream", self.version]
        return self.of_app(*words, *options, about=about)

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
        return f"`celery -A {quoted(self.app or DEFAULT_APP)} worker -n {name}@%h`"

    def of_app(self, *words: str, about: str | None = None) -> str:
        """A command about the app. ``about``: its argument, which may be any text."""
        app = [] if self.app is None else ["-A", self.app]
        # Behind the two dashes nothing is an option.
        end = [] if about is None else [END, about] if about.startswith("-") else [about]
        return f"`{' '.join(map(quoted, ['bridge', *app, *words, *end]))}`"


def quoted(word: str) -> str:
    """``word`` as a shell reads it. A sentence is printed on one line, with control characters written out. So a word
    that this would change is written with escapes, which bash and zsh read.
    """
    if one_line(word, len(word) + 1) == word:
        return shlex.quote(word)
    escapes = [
        chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\x{byte:02x}"
        for byte in word.encode(errors="surrogateescape")
    ]
    return f"$'{''.join(escapes)}'"


def with_options(words: str, options: Sequence[str]) -> str:
    """The command ``words`` of a sentence with these options more, before the two dashes if it has them."""
    # A quoted word may have dashes of its own.
    at = next((word.start() for word in _WORD.finditer(words) if word[0] == END), len(words))
    return " ".join([words[:at].rstrip(), *map(quoted, options), *filter(None, [words[at:]])])


#: Where the app is not known.
NOT_OF_AN_APP = Advice()
