"""The commands that each role sends to Redis.

The commands in the bridge's own Lua scripts are found in the text of the scripts. So the permissions follow a change of
a script. The commands that kombu and Celery send are listed here by hand.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cache

from bridge.routing import (
    delaying,
    effects,
    http_consumers,
    leadership,
    membership,
    notices,
    producing,
    pushes,
    retention,
    ticks,
    transitions,
)
from bridge.routing.layouts import CLAIM_LAYOUT
from bridge.routing.return_codes import ReturnCode
from bridge.routing.scripts import Script


class Role(StrEnum):
    """What a user does in a lane."""

    PRODUCER = "producer"
    MASTER = "master"
    WORKER = "worker"
    OPERATOR = "operator"
    SPARK = "spark"
    SPARK_READER = "spark-reader"


#: Role -> the modules with its scripts.
SCRIPTS_OF = {
    Role.PRODUCER: (producing,),
    Role.MASTER: (leadership, notices, transitions, delaying, http_consumers, retention, ticks),
    Role.WORKER: (effects, membership),
    Role.SPARK: (pushes,),
}

#: Commands of every connection. HELLO and AUTH need no permission. A refused CLIENT SETINFO does no harm.
CONNECTION = ("ping", "info", "select")
TRANSACTION = ("multi", "exec")
SCRIPTS = ("eval", "evalsha", "script|load", "script|exists")
#: Commands with which kombu makes a queue and listens to events and remote control.
LISTENING = (
    *TRANSACTION,
    *SCRIPTS,
    "del",
    "llen",
    "psubscribe",
    "punsubscribe",
    "sadd",
    "smembers",
    "srem",
    "time",
    "zadd",
    "zrangebyscore",
    "zrem",
)
#: Commands with which kombu publishes and receives ordinary tasks, with or without acknowledgement.
RECEIVING = (
    "brpop",
    "hdel",
    "hget",
    "hset",
    "lpush",
    "publish",
    "rpush",
    "set",
    "unwatch",
    "watch",
    "zrange",
    "zrevrangebyscore",
)
#: Commands that store a result.
RESULTS = ("del", "expire", "get", "mget", "publish", "set", "setex", "subscribe", "unsubscribe")
#: Commands that wait for a result.
AWAITING_RESULTS = ("get", "mget", "subscribe", "unsubscribe")

#: Commands of the bridge outside of its scripts.
OWN: dict[Role, tuple[str, ...]] = {
    # Both are for scripts: one that pushes many messages, and one for idempotency keys.
    Role.PRODUCER: (*CONNECTION, "evalsha", "script|load"),
    # Beside the scripts: the type of the key, the progress of the write, and which writers wait.
    Role.SPARK: (
        *CONNECTION,
        "evalsha",
        "eval",
        "script|load",
        "hget",
        "hgetall",
        "time",
        "type",
        "xinfo|stream",
    ),
    # The layout, the type of the key, the stream's length and ends, and its pages.
    Role.SPARK_READER: (*CONNECTION, "get", "type", "xinfo|stream", "xrange", "xrevrange"),
    Role.MASTER: (
        *CONNECTION,
        *TRANSACTION,
        *SCRIPTS,
        "command|info",
        "exists",
        "expire",
        "get",
        "hexists",
        "hget",
        "hgetall",
        "hkeys",
        "hscan",
        "lindex",
        "llen",
        "pttl",
        "publish",
        "rpush",
        "smembers",
        "subscribe",
        "type",
        "unsubscribe",
        "xgroup|create",
        "xinfo|consumers",
        "xinfo|groups",
        "xlen",
        "xpending",
        "xrange",
        "xread",
        "zcard",
        "zmscore",
        "zrange",
        "zrangebyscore",
        "zscan",
    ),
    # `get` and `hgetall`: the states of tickets. `rpop`: a worker that stops gives back what waits in its queue.
    # `lrem`: it takes the probe of its last read back.
    Role.WORKER: (*CONNECTION, *SCRIPTS, "get", "hget", "hgetall", "lrem", "pexpire", "rpop", "set", "xadd"),
    Role.OPERATOR: (
        *CONNECTION,
        *TRANSACTION,
        "blpop",
        "exists",
        "get",
        "hexists",
        "hget",
        "hgetall",
        "hkeys",
        "hlen",
        "hmget",
        "hscan",
        "lindex",
        "llen",
        "memory|usage",
        "mget",
        "pttl",
        "time",
        "type",
        "xadd",
        "xdel",
        "xinfo|consumers",
        "xinfo|groups",
        "xinfo|stream",
        "xlen",
        "xpending",
        "xrange",
        "xread",
        "xrevrange",
        "zcard",
        "zcount",
        "zrangebyscore",
        "zscore",
    ),
}

#: Commands of the views of a master that listens for HTTP: what an operator reads with.
VIEWS = tuple(command for command in OWN[Role.OPERATOR] if command not in ("blpop", "xadd", "xdel"))


@cache
def commands_of_scripts(role: Role) -> frozenset[str]:
    """The commands that the scripts of ``role`` call, in lower case, with the subcommand where there is one."""
    scripts = {value for module in SCRIPTS_OF[role] for value in vars(module).values() if isinstance(value, Script)}
    scripts.discard(CLAIM_LAYOUT)
    return frozenset(command for script in scripts for command in commands_in(script.text))


def commands_in(script: str) -> set[str]:
    """The commands in the text of a script: the first argument of calls, and of tables that are unpacked into calls."""
    code = re.sub(r"--.*", "", script)
    found = set()
    for command, sub in re.findall(r"[({]'([A-Z]{3,})'(?:, '([A-Z]+)')?", code):
        if command in ReturnCode.__members__:
            continue
        container = command in ("XGROUP", "XINFO")
        found.add(f"{command}|{sub}".lower() if container else command.lower())
    return found


def commands_for_layout(split: bool) -> set[str]:
    """The commands that read the layout, and store it where the stream is split."""
    return commands_in(CLAIM_LAYOUT.text) if split else {"get", "exists"}
