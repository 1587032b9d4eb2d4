"""Checks that a server has the commands of a role: an administrator may have renamed or disabled some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from bridge.link.connections import LACKS_ADVICE, UNAVAILABLE
from bridge.operate.role_commands import OWN, commands_of_scripts
from bridge.routing.errors import ServerUnfit

if TYPE_CHECKING:
    from redis import Redis

    from bridge.operate.role_commands import Role


def refuse_without_commands(redis: Redis, role: Role) -> None:
    """Raises `ServerUnfit`, one line, when the server has not all commands that ``role`` sends.

    Nothing is checked when the server is away or refuses COMMAND: the command itself then fails with the reason.
    """
    needed = sorted({one.partition("|")[0] for one in (*OWN[role], *commands_of_scripts(role))})
    try:
        # As one text: redis-py takes the reply of `COMMAND` apart, and knows no command that is missing.
        found: Any = redis.execute_command("COMMAND INFO", *needed)
    except (ResponseError, *UNAVAILABLE):
        return
    # A proxy before the server may answer with anything.
    answered = found if isinstance(found, list) and len(found) == len(needed) else [()] * len(needed)
    missing = [name.upper() for name, facts in zip(needed, answered, strict=True) if facts is None]
    if missing:
        what = "command" if len(missing) == 1 else "commands"
        raise ServerUnfit(f"the server has no {what} {', '.join(missing)}, {LACKS_ADVICE}")
