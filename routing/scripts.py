"""Loads and runs the Lua transitions. Only the typed functions of `routing` use this; nothing else calls EVAL."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import NoScriptError

#: Where the Lua files are.
FOLDER = Path(__file__).parent / "lua"

#: A script argument as it goes over the wire.
Word = str | bytes | int | float


class Script:
    """One Lua file: sent by its hash, and whole when the server does not know it (a restart, SCRIPT FLUSH)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (FOLDER / f"{name}.lua").read_text()
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def run(self, client: Redis, keys: Sequence[Word], args: Sequence[Word]) -> Any:
        """The script's reply; one round trip, two when the server has to be told the script."""
        try:
            return client.execute_command("EVALSHA", self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return client.execute_command("EVAL", self.text, len(keys), *keys, *args)
