"""From what Spark throws to one line that a user can act on.

An error that a task or the data source raised arrives as text, deep inside Java's account of it. The project's own
errors are found there by their class names; of Spark's own, the first sentence is kept.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import routing.errors
from routing.errors import InputError, TicketBridgeError
from spark.replies import RefusedByServer

_OWN: dict[str, type[TicketBridgeError]] = {
    "RefusedByServer": RefusedByServer,
    **{
        name: kind
        for name, kind in vars(routing.errors).items()
        if isinstance(kind, type) and issubclass(kind, TicketBridgeError)
    },
}
_OWN_LINE = re.compile(r"^\s*(?:routing\.errors|spark\.replies)\.(\w+): (.+?)\s*$", re.MULTILINE)
#: Sentences in Spark's errors that name what is wrong with a file, more precisely than the first sentence does.
_TELLING = (
    re.compile(r"Exception: ((?i:not in gzip format|incorrect header check|unexpected end of input stream))"),
    re.compile(r"(is not a Parquet file)"),
    re.compile(r"\[MALFORMED_RECORD_IN_PARSING[^\]]*\] ([^\n]+)"),
    re.compile(r"\[(?:PATH_NOT_FOUND|UNABLE_TO_INFER_SCHEMA|FAILED_READ_FILE[^\]]*|CAST_INVALID_INPUT)\] ([^\n]+)"),
)
_SILENCE = logging.NullHandler()
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+.*")


def one_line(error: BaseException) -> TicketBridgeError:
    """The project's error for anything that a job may meet; its text is one line of at most 400 characters."""
    if isinstance(error, TicketBridgeError):
        return error
    text = str(error)
    own = _OWN_LINE.search(text)
    if own and own[1] in _OWN:
        return _OWN[own[1]](own[2])
    for telling in _TELLING:
        found = telling.search(text)
        if found:
            return InputError(f"the input cannot be read: {_SQLSTATE.sub('', found[1]).strip()[:300]}")
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return TicketBridgeError(f"Spark failed: {first[:300]}")


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived. A relative of Ctrl-C, since PySpark knows how to stop for that."""


@contextmanager
def told_in_one_line(*, as_json: bool = False) -> Iterator[None]:
    """Run a job; whatever goes wrong ends the process with one line on standard error and the error's exit code.

    With ``as_json``, standard output gets ``{"event": "failed", "error": …}`` too, for a supervisor that reads it.
    SIGTERM ends the job like Ctrl-C, with Spark stopped and its files removed.
    """
    # What is between Python and Java logs a stack trace to the root logger when a signal interrupts it; without a
    # handler there, Python would print it.
    logging.getLogger().addHandler(_SILENCE)
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except Terminated:
        _end("stopped by SIGTERM", 128 + signal.SIGTERM, as_json)
    except KeyboardInterrupt:
        _end("stopped", 128 + signal.SIGINT, as_json)
    except Exception as error:
        told = one_line(error)
        _end(str(told), told.exit_code, as_json)
    finally:
        signal.signal(signal.SIGTERM, before)
        logging.getLogger().removeHandler(_SILENCE)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


def emit(**event: Any) -> None:
    """One JSON line on standard output, at once."""
    print(json.dumps(event, ensure_ascii=False), flush=True)


def _end(line: str, code: int, as_json: bool) -> NoReturn:
    if as_json:
        emit(event="failed", error=line)
    print(f"error: {line}", file=sys.stderr, flush=True)
    raise SystemExit(code)
