"""Text for people: control characters written out. For messages, logs and terminals."""

from __future__ import annotations

import re
from typing import Any

#: Characters that control a terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """``text``, a name or an error, on one line with control characters written out: an untrusted payload must not
    control the terminal, and a name must not look like a line of its own.
    """
    return _CONTROL.sub(_written_out, text)


def printable_lines(text: str) -> str:
    """As `printable`, but line feeds and tabs stay: for tracebacks and payloads."""
    return _CONTROL.sub(lambda found: found[0] if found[0] in "\n\t" else _written_out(found), text)


def _written_out(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}" if found[0] < "\u0100" else "\ufffd"


def safe_repr(one: Any, limit: int) -> str:
    """The ``repr`` of anything, at most ``limit`` characters. Its class is the user's, and its methods may raise."""
    try:
        return repr(one)[:limit]
    except Exception as second:
        return f"<{type(one).__name__}, whose __repr__ raised {type(second).__name__}>"


def safe_str(one: Any) -> str:
    """The ``str`` of anything, as `safe_repr`."""
    try:
        return str(one)
    except Exception as second:
        return f"<{type(one).__name__}, whose __str__ raised {type(second).__name__}>"


def error_text(exc: BaseException) -> str:
    """The class and the text of any exception."""
    return f"{type(exc).__name__}: {safe_str(exc)}"


def one_line(text: str, limit: int = 200) -> str:
    """``text`` on one line of at most ``limit`` characters."""
    flat = " ".join(printable_lines(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
