"""Turns the errors that Spark raises into one line that a user can act on.

An error of a task or of the data source arrives as text, inside a longer text of Java's. The project's own errors are
found there by their class names. All other errors are shown by their first cause: the end of the first Python
traceback, else Java's innermost cause, else the first line.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

import bridge.routing.errors
from bridge.routing.errors import ConfigurationError, InputError, PayloadError, TicketBridgeError
from bridge.spark.wire.replies import RefusedByServer
from bridge.spark.write.limits import REFUSED

#: The project's own errors, by the name with which a traceback begins its last line.
_OWN: dict[str, type[TicketBridgeError]] = {
    f"{kind.__module__}.{kind.__name__}": kind
    for kind in (RefusedByServer, *vars(bridge.routing.errors).values())
    if isinstance(kind, type) and issubclass(kind, TicketBridgeError)
}
_OWN_LINE = re.compile(rf"^\s*({'|'.join(map(re.escape, _OWN))}): (.+?)\s*$", re.MULTILINE)
#: Sentences in Spark's errors that say what is wrong with a file, more precisely than the first sentence.
_TELLING = (
    re.compile(r"Exception: ((?i:not in gzip format|incorrect header check|unexpected end of input stream))"),
    re.compile(r"(is not a Parquet file)"),
    re.compile(r"\[(?:CANNOT_PARSE_JSON_FIELD|MALFORMED_CSV_RECORD)[^\]]*\] ([^\n]+)"),
    re.compile(r"\bjackson\.core\.(?:\w+\.)*(Json\w+Exception: [^\n]+)"),
    re.compile(r"\[MALFORMED_RECORD_IN_PARSING[^\]]*\] ([^\n]+)"),
    re.compile(r"\[(?:PATH_NOT_FOUND|UNABLE_TO_INFER_SCHEMA|FAILED_READ_FILE[^\]]*|CAST_INVALID_INPUT)\] ([^\n]+)"),
)
#: Errors of a Python in which Spark cannot run tasks. If several match, the first one says most.
_PYTHON = (
    (
        re.compile(
            r"\[PYTHON_VERSION_MISMATCH\] Python in worker has different version: (\S+) than that in driver: (\S+),"
        ),
        "is Python {0}, and the driver's is {1}",
    ),
    (re.compile(r"Cannot run program \"([^\"\n]*python[^\"\n]*)\""), "should be {0!r}, which does not exist"),
    (re.compile(r"^\s*ModuleNotFoundError: No module named '([^'\n]+)'", re.MULTILINE), "has no module {0!r}"),
    (re.compile(r"\[PACKAGE_NOT_INSTALLED\] ([^\n]+)"), "lacks a package: {0}"),
    (re.compile(r"Error from python worker:\n(?:.*\n)*?\s*(\S[^\n]*)\nPYTHONPATH was:"), "does not start: {0}"),
)
#: The file that has the error, where Spark names it.
_FILE = re.compile(r"while reading file (.+?)\.(?:\s|$)", re.MULTILINE)
#: The error of a streaming query on files whose checkpoint is of another folder.
_OTHER_FOLDER = re.compile(r"Wrong basePath (?P<folder>\S+) for the root path: (?P<file>[^\s,]+)")
#: What Hadoop says of a name with a colon. Of a file that is read, it names the checksum.
_NO_URI = re.compile(r"Relative path in absolute URI: (\S[^\n]*)")
#: The project's words for that.
COLON = "Spark cannot use a name with a colon"
#: From here on, the error of a streaming query shows the plan. The plan may contain words of ours.
_PLAN = re.compile(r"^(?:=== Streaming Query ===|Logical Plan:)", re.MULTILINE)
_HEADER = re.compile(
    r"(?:Expected: (?P<expected>[^\n]+) but found: (?P<found>[^\n]+)"
    r"|Header length: (?P<length>\d+), schema size: (?P<size>\d+))\nCSV file: (?P<file>\S+)"
)
#: The end of a traceback, and a cause in Java's text. The last match of each is the first cause.
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")
_CAUSED = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
#: Tracebacks that end like this only say that Java has failed.
_OF_JAVA = ("py4j.", "pyspark.errors.")
#: The name of a class before its message. Python's class names without a dot are kept: they say something.
_CLASS = re.compile(r"^(?:\w+\.)+\w+: ")
#: A row that Spark SQL refused. Without Spark's mark before them, the words may be part of a plan.
_REFUSED_LINE = re.compile(rf"\[USER_RAISED_EXCEPTION\] {REFUSED}(.+?)(?:\s+SQLSTATE: \w+.*)?$", re.MULTILINE)
_SILENCE = logging.NullHandler()
_MOST_CAUSES = 10
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+.*")


def one_line(error: BaseException) -> TicketBridgeError:
    """The project's error for any error of a job. Its text is one line of at most 400 characters."""
    if isinstance(error, TicketBridgeError):
        return error
    if isinstance(error, OSError) and error.strerror:
        return TicketBridgeError(error.strerror if error.filename is None else f"{error.strerror}: {error.filename}")
    account = _account(error)
    text = "\n".join(account)
    own = _OWN_LINE.search(text)
    if own:
        return _OWN[own[1]](own[2])
    refused = _REFUSED_LINE.search(text)
    if refused:
        return PayloadError(f"{refused[1][:300]}; nothing was written")
    header = _HEADER.search(text)
    if header:
        return InputError(_of_header(header))
    other = _OTHER_FOLDER.search(text)
    if other:
        return ConfigurationError(
            f"the checkpoint is of another folder, the one of {other['file'][:120]}: {other['folder'][:120]} needs "
            "another --checkpoint"
        )
    no_uri = _NO_URI.search(text)
    if no_uri:
        file = _FILE.search(text)
        return InputError(f"{COLON}: rename {(file or no_uri)[1][:300]}")
    for sign, about in _PYTHON:
        found = sign.search(text)
        if found:
            return ConfigurationError(
                f"the Python that Spark runs tasks with {about.format(*(word[:160] for word in found.groups()))}; "
                "PYSPARK_PYTHON must name one like the driver's, with pyarrow and redis, on every machine"
            )
    for telling in _TELLING:
        found = telling.search(text)
        if found:
            return InputError(_unreadable(_SQLSTATE.sub("", found[1]).strip(), _FILE.search(text)))
    said = _SQLSTATE.sub("", _CLASS.sub("", _origin(account) or type(error).__name__))
    return TicketBridgeError(f"Spark failed: {said[:300]}")


def _account(error: BaseException) -> list[str]:
    """The messages of an error and its causes. The error of a streaming query says little without them."""
    texts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(texts) < _MOST_CAUSES:
        texts.append(_PLAN.split(_words(cause), maxsplit=1)[0].strip())
        # PySpark's own chain of Java's causes. It has no public name.
        cause = getattr(cause, "_cause", None)
    return texts


def _words(error: BaseException) -> str:
    """The message of an error. Spark's errors ask Java for it, which may have ended."""
    try:
        return str(error)
    except Exception:
        return f"{type(error).__name__}, and Java has ended"


def _origin(account: list[str]) -> str:
    """The line with the first cause."""
    text = "\n".join(account)
    raised = [line for line in _RAISED.findall(text) if not line.startswith(_OF_JAVA)]
    if raised:
        return str(raised[-1])
    caused = [line for line in _CAUSED.findall(text) if "Traceback" not in line]
    if caused:
        return str(caused[-1])
    deepest = next((said for said in reversed(account) if said), "")
    # Of a traceback, its end: it may be the message of a Java that called this Python.
    of_java = list(_RAISED.finditer(deepest))
    told = deepest[of_java[-1].start(1) :] if of_java else deepest
    lines = [line.strip().removeprefix(": ") for line in told.splitlines() if line.strip()]
    if len(lines) > 1 and _CLASS.sub("", lines[0]).startswith("An error occurred while calling"):
        return lines[1]
    return lines[0] if lines else ""


def _unreadable(what: str, file: re.Match[str] | None) -> str:
    """Why the input cannot be read, with the file, if it is known and not named already."""
    where = f" ({file[1][:160]})" if file and file[1] not in what else ""
    return f"the input cannot be read: {what[: 300 - len(where)]}{where}"


def _of_header(found: re.Match[str]) -> str:
    what = f"{found['found']!r} where {found['expected']!r} is expected"
    if found["length"]:
        what = f"{found['length']} columns where {found['size']} are expected"
    return (
        f"the header of {found['file']} has {what}: the files of a folder need the same columns in the same order "
        "(or those of --schema)"
    )


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived. It is a ``KeyboardInterrupt``, since PySpark stops for that."""


@contextmanager
def errors_in_one_line(*, as_json: bool = False) -> Iterator[None]:
    """Runs a job. Any error ends the process with one line on standard error and the error's exit code.

    With ``as_json``, standard output gets ``{"event": "failed", "error": …}`` too, for a supervisor that reads it.
    SIGTERM ends the job as Ctrl-C does: Spark is stopped and its files are removed.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The name of a file may not be valid text.
        sys.stdout.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        # `start` has set this for the time of the imports.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # When a signal interrupts py4j, it logs a stack trace to the root logger. Without a handler there, Python would
    # print it.
    logging.getLogger().addHandler(_SILENCE)
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except Terminated:
        _end("stopped by SIGTERM", 128 + signal.SIGTERM, as_json)
    except KeyboardInterrupt:
        _end("stopped", 128 + signal.SIGINT, as_json)
    except BrokenPipeError:
        _end("the reader of standard output has gone", 1, as_json=True)
    except Exception as error:
        line = one_line(error)
        _end(str(line), line.exit_code, as_json)
    finally:
        signal.signal(signal.SIGTERM, before)
        logging.getLogger().removeHandler(_SILENCE)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


def emit(**event: Any) -> None:
    """Writes one JSON line to standard output, at once. It is ASCII, since names of files may not be valid text."""
    # In one write, even without a buffer: other threads write events too.
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _end(line: str, code: int, as_json: bool) -> NoReturn:
    try:
        if as_json:
            emit(event="failed", error=line)
        elif sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        # The reader has gone (`… | head`), or the disk is full. Python would fail once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with suppress(OSError):
        print(f"error: {line}", file=sys.stderr, flush=True)
    raise SystemExit(code)
