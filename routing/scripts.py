"""Loads and runs the Lua scripts. Only the typed functions of `routing` use this; no other code calls EVAL."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import NoScriptError

#: The place of the Lua files. It may be inside an archive: executors of Spark get the package as one.
FOLDER = files("bridge.routing").joinpath("lua")

#: A line of a script that stands for a file of ``shared/``: what several scripts have in common.
_SHARED = re.compile(r"^-- shared: (\w+)$", re.MULTILINE)

#: A script argument as it goes over the wire.
Argument = str | bytes | int | float


class Script:
    """One Lua file. It is called by its hash, and sent whole if the server does not know it (restart, SCRIPT FLUSH)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = with_shared(FOLDER.joinpath(f"{name}.lua").read_text(encoding="utf-8"))
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def run(self, client: Redis, keys: Sequence[Argument], args: Sequence[Argument], *, loads: bool = False) -> Any:
        """Runs the script and returns its reply. One round trip; two when the server does not know the script.

        ``loads``: for users who may load a script, and not send its text with a call (EVAL).
        """
        try:
            return client.execute_command("EVALSHA", self.sha, len(keys), *keys, *args)
        except NoScriptError:
            if loads:
                client.script_load(self.text)
                return client.execute_command("EVALSHA", self.sha, len(keys), *keys, *args)
            return client.execute_command("EVAL", self.text, len(keys), *keys, *args)

    async def arun(self, client: AsyncRedis, keys: Sequence[Argument], args: Sequence[Argument]) -> Any:
        """As `run`, for asyncio."""
        try:
            return await client.execute_command("EVALSHA", self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return await client.execute_command("EVAL", self.text, len(keys), *keys, *args)

    def run_each(self, client: Redis, calls: Sequence[Sequence[Argument]]) -> list[Any]:
        """Runs the script once for each of ``calls`` (number of keys, keys, arguments), in one round trip; in three
        when the server does not know the script. Returns the replies; an error of one call is its reply.
        """
        replies = self._send_each(client, calls)
        # Another process may have loaded the script between two calls. Those that ran must not run again.
        unknown = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            client.script_load(self.text)
            again = self._send_each(client, [calls[index] for index in unknown])
            for index, reply in zip(unknown, again, strict=True):
                replies[index] = reply
        return replies

    def _send_each(self, client: Redis, calls: Sequence[Sequence[Argument]]) -> list[Any]:
        with client.pipeline(transaction=False) as pipe:
            for call in calls:
                pipe.execute_command("EVALSHA", self.sha, *call)
            return pipe.execute(raise_on_error=False)

    def call(self, keys: Sequence[Argument], args: Sequence[Argument]) -> tuple[Argument, ...]:
        """The command that runs the script, for a caller who sends it by itself. It may raise `NoScriptError`."""
        return ("EVALSHA", self.sha, len(keys), *keys, *args)

    @property
    def loading(self) -> tuple[str, str, str]:
        """The command that loads the script, for calls that are sent without waiting for their replies."""
        return ("SCRIPT", "LOAD", self.text)

    def opening(self, keys: Sequence[Argument], args: Sequence[Argument], more: int) -> bytes:
        """The encoded call without its last ``more`` arguments. The caller sends these after it."""
        arguments = [b"EVALSHA", self.sha.encode(), b"%d" % len(keys), *map(_packed, keys), *map(_packed, args)]
        head = b"*%d\r\n" % (len(arguments) + more)
        return head + b"".join(b"$%d\r\n%s\r\n" % (len(argument), argument) for argument in arguments)


def with_shared(text: str) -> str:
    """The text of a script, with what it shares with others in its place."""
    return _SHARED.sub(lambda found: FOLDER.joinpath("shared", f"{found[1]}.lua").read_text(encoding="utf-8"), text)


def _packed(argument: Argument) -> bytes:
    return argument if isinstance(argument, bytes) else str(argument).encode()
