"""Text for people: control characters written out. For messages, logs and terminals."""

from __future__ import annotations

import re

#: Characters that control a terminal. Line breaks and tabs are not among them.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """``text`` with control characters written out, because an untrusted payload must not control the terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}" if found.group() < "\u0100" else "\ufffd", text)


def one_line(text: str, limit: int = 200) -> str:
    """``text`` on one line of at most ``limit`` characters."""
    flat = " ".join(printable(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
